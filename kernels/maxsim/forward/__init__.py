"""The fused forward kernels for GPUs, in Triton and, on Hopper, in Gluon. Imported only where a GPU is used.

backend      what `dispatch` calls: two sides → scores
choose       the frozen table: shapes → kernel, configuration, reason
work         a choice for two layouts → all launches and the memory between them, remembered
prepare      what each kernel is told beside addresses; `prepare_hopper` has those for Hopper
operands     the tensors of one call, in a fixed order
short_query  queries of few rows: bound by memory; documents on the tensor core's M side
long_query   packed query rows: bound by arithmetic; query rows on the M side, any Triton GPU
short_hopper queries of few rows on Hopper: the copy engine reads the documents
hopper       many query rows on Hopper: TMA ring, two ping-pong consumer warpgroups
copy_engine  what the two kernels for Hopper share
block_top_k  the best of many scores, block by block
products     float32 products on tensor cores, in one order
rowsum       the one order in which maxima are added up
finish       row maxima → scores, for the kernels that cut a document or a query into parts
warmup       compile everything the table holds
launch       compile once, count compilations, launch in a few microseconds
variant      a compiled kernel on one device, and how it is started
"""

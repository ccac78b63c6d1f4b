"""The fused forward kernels for GPUs, in Triton and, on Hopper, in Gluon. Imported only where a GPU is used.

backend      operands → launches; what `dispatch` calls
choose       the frozen table: shapes → kernel, configuration, reason
short_query  queries of few rows: bound by memory; documents on the tensor core's M side
long_query   packed query rows: bound by arithmetic; query rows on the M side, any Triton GPU
hopper       the same on Hopper: TMA ring, two ping-pong consumer warpgroups
products     float32 products on tensor cores, in one order
rowsum       the one order in which maxima are added up
finish       row maxima → scores, for the kernels that cut a document or a query into parts
warmup       compile everything the table holds
launch       compile once, count compilations, launch in a few microseconds
"""

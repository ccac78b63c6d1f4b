/* Fused MaxSim for x86-64 with AVX2, FMA and F16C: products, maxima and sums in one pass over a store.
 *
 * Six tokens at a time are converted to float32, exactly, and meet sixteen query rows at a time: twelve
 * accumulators, each a vector over eight query rows, stay in registers while the loop runs along the
 * width. Nothing is packed but the queries, and nothing is written out but the
 * running maxima, which fit in the first-level cache.
 *
 * A product is one chain of fused multiply-adds along the width, in order, in a lane of its own, so it
 * has the same bits whatever is beside it. A sum runs over a query's rows in order, in float64, and is
 * rounded to float32 once.
 */

#if defined(__x86_64__)

#include <immintrin.h>
#include <math.h>
#include <stdint.h>

#define TOKENS 6
/* Tokens of the next document that are asked of memory ahead; a store is far larger than any cache. */
#define AHEAD 12
#define LANES 16
/* Documents that a thread takes at a time. */
#define TAKEN 4
#define MAX_DIM 1024
/* Rows a page apart would compete for the same few lines of the cache. */
#define STRIDE (MAX_DIM + 16)

enum dtype { FLOAT16 = 0, BFLOAT16 = 1, FLOAT32 = 2 };

int maxsim_supported(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

__attribute__((target("avx2,fma,f16c")))
static float convert_one(const char *row, int dtype, int64_t at) {
    if (dtype == FLOAT32) return ((const float *)row)[at];
    const uint16_t bits = ((const uint16_t *)row)[at];
    return dtype == FLOAT16 ? _cvtsh_ss(bits) : _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128((int)bits << 16)));
}

/* One row, its elements column_step apart, to float32. dim is a multiple of 8. */
__attribute__((target("avx2,fma,f16c")))
static void convert(const char *row, int64_t column_step, int dtype, int64_t dim, float *out) {
    if (column_step != 1) {
        for (int64_t k = 0; k < dim; k++) out[k] = convert_one(row, dtype, k * column_step);
        return;
    }
    if (dtype == FLOAT16) {
#pragma GCC unroll 4
        for (int64_t k = 0; k < dim; k += 8)
            _mm256_storeu_ps(out + k, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)((const uint16_t *)row + k))));
    } else if (dtype == BFLOAT16) {
#pragma GCC unroll 4
        for (int64_t k = 0; k < dim; k += 8) {
            const __m128i half = _mm_loadu_si128((const __m128i *)((const uint16_t *)row + k));
            _mm256_storeu_ps(out + k, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16)));
        }
    } else {
        for (int64_t k = 0; k < dim; k += 8) _mm256_storeu_ps(out + k, _mm256_loadu_ps((const float *)row + k));
    }
}

/* Six tokens, rows of [6][STRIDE], against sixteen query rows, given as [dim][16]; raises the maxima [16].
 * Unrolled whole, or the accumulators would live in memory. A maximum instruction forgets a NaN, so
 * that is remembered apart, in spoiled [16]. */
__attribute__((target("avx2,fma,f16c")))
static void raise_maxima(const float *tokens, const float *queries, int64_t dim, float *maxima, float *spoiled) {
    __m256 low[TOKENS], high[TOKENS];
#pragma GCC unroll 6
    for (int t = 0; t < TOKENS; t++) low[t] = high[t] = _mm256_setzero_ps();
#pragma GCC unroll 4
    for (int64_t k = 0; k < dim; k++) {
        const __m256 first = _mm256_loadu_ps(queries + k * LANES);
        const __m256 second = _mm256_loadu_ps(queries + k * LANES + 8);
#pragma GCC unroll 6
        for (int t = 0; t < TOKENS; t++) {
            const __m256 token = _mm256_broadcast_ss(tokens + t * STRIDE + k);
            low[t] = _mm256_fmadd_ps(token, first, low[t]);
            high[t] = _mm256_fmadd_ps(token, second, high[t]);
        }
    }
    __m256 best_low = _mm256_loadu_ps(maxima), best_high = _mm256_loadu_ps(maxima + 8);
    __m256 nan_low = _mm256_loadu_ps(spoiled), nan_high = _mm256_loadu_ps(spoiled + 8);
#pragma GCC unroll 6
    for (int t = 0; t < TOKENS; t++) {
        best_low = _mm256_max_ps(best_low, low[t]);
        best_high = _mm256_max_ps(best_high, high[t]);
        nan_low = _mm256_or_ps(nan_low, _mm256_cmp_ps(low[t], low[t], _CMP_UNORD_Q));
        nan_high = _mm256_or_ps(nan_high, _mm256_cmp_ps(high[t], high[t], _CMP_UNORD_Q));
    }
    _mm256_storeu_ps(maxima, best_low);
    _mm256_storeu_ps(maxima + 8, best_high);
    _mm256_storeu_ps(spoiled, nan_low);
    _mm256_storeu_ps(spoiled + 8, nan_high);
}

/* The rows of all documents, and the block of queries; the comment at maxsim_score says what each is. */
struct work {
    const char *table;
    int64_t row_bytes, column_step;
    int dtype;
    int64_t dim;
    int64_t lanes;
    const int64_t *query_lengths;
    int64_t query_count;
    const int64_t *starts, *lengths;
    int64_t document_count, step;
    const int64_t *index, *columns;
    float *scores;
    int64_t score_stride;
};

static const char *row_of(const struct work *w, int64_t n, int64_t j) {
    return w->table + (w->index ? w->index[w->starts[n] + j] : w->starts[n] + w->step * j) * w->row_bytes;
}

/* Ask memory for the first tokens of document n; the processor sees by itself how it goes on. */
static void prefetch(const struct work *w, int64_t n) {
    if (w->column_step != 1) return;
    const int64_t bytes = w->dim * (w->dtype == FLOAT32 ? 4 : 2);
    for (int64_t j = 0; j < AHEAD && j < w->lengths[n]; j++)
        for (int64_t at = 0; at < bytes; at += 64) _mm_prefetch(row_of(w, n, j) + at, _MM_HINT_T0);
}

/* Query rows [rows][dim] to [lanes / 16][dim][16]: each column's sixteen values side by side, zeros at the end. */
static void pack(const float *queries, int64_t rows, int64_t lanes, int64_t dim, float *packed) {
    for (int64_t lane = 0; lane < lanes; lane++)
        for (int64_t k = 0; k < dim; k++)
            packed[(lane / LANES * dim + k) * LANES + lane % LANES] = lane < rows ? queries[lane * dim + k] : 0;
}

/* All queries of the block with document n. */
static void score_document(const struct work *w, int64_t n, const float *queries, float *maxima) {
    float tokens[TOKENS * STRIDE];
    float *spoiled = maxima + w->lanes;
    const int64_t length = w->lengths[n];
    for (int64_t lane = 0; lane < w->lanes; lane++) {
        maxima[lane] = -INFINITY;
        spoiled[lane] = 0;
    }
    for (int64_t begin = 0; begin < length; begin += TOKENS) {
        for (int t = 0; t < TOKENS; t++) {
            /* Past the end the last token is repeated: a maximum does not mind. */
            const int64_t j = begin + t < length ? begin + t : length - 1;
            convert(row_of(w, n, j), w->column_step, w->dtype, w->dim, tokens + t * STRIDE);
        }
        for (int64_t lane = 0; lane < w->lanes; lane += LANES)
            raise_maxima(tokens, queries + lane * w->dim, w->dim, maxima + lane, spoiled + lane);
    }
    int64_t lane = 0;
    for (int64_t q = 0; q < w->query_count; q++) {
        double sum = 0;
        for (int64_t i = 0; i < w->query_lengths[q]; i++, lane++)
            sum += spoiled[lane] != 0 ? (double)NAN : (double)maxima[lane];
        w->scores[q * w->score_stride + w->columns[n]] = (float)sum;
    }
}

/* Scores of a block of queries with documents of one token or more.
 *
 * table           first row of the tokens; rows are row_bytes apart, their dim elements column_step elements
 * queries         [sum of query_lengths][dim] float32, the queries' rows one after the other
 * query_lengths   [query_count] rows of each query
 * starts, lengths [document_count]: document n has rows starts[n] + step * j of the table, or rows
 *                 index[starts[n] + j] where there is an index, for j below lengths[n]
 * scores, columns the score of query q with document n goes to scores[q * score_stride + columns[n]]
 * next_document   [1] shared by all threads that take part, 0 at first: each takes the next few documents
 *                 until none is left
 * scratch         [lanes * (dim + 2)] of the calling thread; lanes is the number of query rows, rounded up to
 *                 a multiple of 16
 */
void maxsim_score(const char *table, int64_t row_bytes, int64_t column_step, int dtype, int64_t dim,
                  const float *queries, const int64_t *query_lengths, int64_t query_count,
                  const int64_t *starts, const int64_t *lengths, int64_t document_count,
                  int64_t step, const int64_t *index, float *scores, int64_t score_stride, const int64_t *columns,
                  int64_t *next_document, float *scratch) {
    int64_t rows = 0;
    for (int64_t q = 0; q < query_count; q++) rows += query_lengths[q];
    const int64_t lanes = (rows + LANES - 1) / LANES * LANES;
    const struct work w = {table, row_bytes, column_step, dtype, dim, lanes, query_lengths, query_count,
                           starts, lengths, document_count, step, index, columns, scores, score_stride};
    float *const packed = scratch, *const maxima = scratch + lanes * dim;
    pack(queries, rows, lanes, dim, packed);
    for (;;) {
        const int64_t first = __atomic_fetch_add(next_document, TAKEN, __ATOMIC_RELAXED);
        if (first >= document_count) return;
        const int64_t end = first + TAKEN < document_count ? first + TAKEN : document_count;
        for (int64_t n = first; n < end; n++) {
            if (n + 1 < end) prefetch(&w, n + 1);
            score_document(&w, n, packed, maxima);
        }
    }
}

#else

int maxsim_supported(void) { return 0; }

#endif

/* Fused MaxSim for x86-64 with AVX2, FMA and F16C: products, maxima and sums in one pass over a store.
 *
 * Six tokens at a time are converted to float32, exactly, and meet sixteen query rows at a time: twelve
 * accumulators, each a vector over eight query rows, stay in registers while the loop runs along the
 * width. Nothing is packed or written out but the running maxima, which fit in the first-level cache.
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
/* Tokens that are asked of memory before they are needed; a store is far larger than any cache. */
#define AHEAD 12
#define LANES 16
#define MAX_DIM 1024
/* Rows a page apart would compete for the same few lines of the cache. */
#define STRIDE (MAX_DIM + 16)

enum dtype { FLOAT16 = 0, BFLOAT16 = 1, FLOAT32 = 2 };

int maxsim_supported(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

/* One row to float32. dim is a multiple of 8. */
__attribute__((target("avx2,fma,f16c")))
static void convert(const char *row, int dtype, int64_t dim, float *out) {
    for (int64_t k = 0; k < dim; k += 8) {
        __m256 value;
        if (dtype == FLOAT32) {
            value = _mm256_loadu_ps((const float *)row + k);
        } else {
            __m128i half = _mm_loadu_si128((const __m128i *)((const uint16_t *)row + k));
            value = dtype == FLOAT16
                        ? _mm256_cvtph_ps(half)
                        : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
        }
        _mm256_storeu_ps(out + k, value);
    }
}

static const char *row_of(const char *table, int64_t row_bytes, int64_t start, int64_t step, const int64_t *index,
                          int64_t j) {
    return table + (index ? index[start + j] : start + step * j) * row_bytes;
}

static void prefetch(const char *row, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += 64) _mm_prefetch(row + at, _MM_HINT_T0);
}

/* Six tokens, rows of [6][STRIDE], against sixteen query rows, given as [dim][16]; raises the maxima [16].
 * Unrolled whole, or the accumulators would live in memory. A maximum instruction forgets a NaN, so
 * that is remembered apart, in spoiled [16]. */
__attribute__((target("avx2,fma,f16c")))
static void raise_maxima(const float *tokens, const float *queries, int64_t dim, float *maxima, float *spoiled) {
    __m256 low[TOKENS], high[TOKENS];
#pragma GCC unroll 6
    for (int t = 0; t < TOKENS; t++) low[t] = high[t] = _mm256_setzero_ps();
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

/* Scores [query_count][document_count] of a block of queries with documents of one token or more.
 *
 * table           first row of the tokens; rows are row_bytes apart, their dim elements side by side
 * queries         [lanes / 16][dim][16] float32, the queries' rows one after the other, padded to lanes
 * query_lengths   [query_count] rows of each query
 * starts, lengths [document_count]: document n has rows starts[n] + step * j of the table, or rows
 *                 index[starts[n] + j] where there is an index, for j below lengths[n]
 * maxima          [2 * lanes] scratch
 */
__attribute__((target("avx2,fma,f16c")))
void maxsim_score(const char *table, int64_t row_bytes, int dtype, int64_t dim,
                  const float *queries, int64_t lanes, const int64_t *query_lengths, int64_t query_count,
                  const int64_t *starts, const int64_t *lengths, int64_t document_count,
                  int64_t step, const int64_t *index, float *maxima, float *scores) {
    float tokens[TOKENS * STRIDE];
    float *spoiled = maxima + lanes;
    const int64_t used_bytes = dim * (dtype == FLOAT32 ? 4 : 2);
    for (int64_t n = 0; n < document_count; n++) {
        for (int64_t lane = 0; lane < lanes; lane++) {
            maxima[lane] = -INFINITY;
            spoiled[lane] = 0;
        }
        if (n + 1 < document_count)
            for (int64_t j = 0; j < AHEAD && j < lengths[n + 1]; j++)
                prefetch(row_of(table, row_bytes, starts[n + 1], step, index, j), used_bytes);
        for (int64_t begin = 0; begin < lengths[n]; begin += TOKENS) {
            for (int64_t j = begin + AHEAD; j < begin + AHEAD + TOKENS && j < lengths[n]; j++)
                prefetch(row_of(table, row_bytes, starts[n], step, index, j), used_bytes);
            for (int t = 0; t < TOKENS; t++) {
                /* Past the end the last token is repeated: a maximum does not mind. */
                int64_t j = begin + t < lengths[n] ? begin + t : lengths[n] - 1;
                convert(row_of(table, row_bytes, starts[n], step, index, j), dtype, dim, tokens + t * STRIDE);
            }
            for (int64_t lane = 0; lane < lanes; lane += LANES)
                raise_maxima(tokens, queries + lane * dim, dim, maxima + lane, spoiled + lane);
        }
        int64_t lane = 0;
        for (int64_t q = 0; q < query_count; q++) {
            double sum = 0;
            for (int64_t i = 0; i < query_lengths[q]; i++, lane++)
                sum += spoiled[lane] != 0 ? (double)NAN : (double)maxima[lane];
            scores[q * document_count + n] = (float)sum;
        }
    }
}

#else

int maxsim_supported(void) { return 0; }

#endif

// Linear layers on weights packed in panels of 16 output channels.
//
//   fp32, fp16, bf16   panel: [inputs][16]; products in fp32.
//   fp24               panel: [inputs][16 upper halves, 16 third bytes] of fp32 whose last bytes are 0; the same.
//   int8, int4         panel: groups of inputs, each [16 scales fp16][16 minimums fp16 (int4 only)][codes].
//     codes of int8    [inputs of the group / 2][16 channels][2 inputs], signed; value = scale * code.
//     codes of int4    [inputs of the group / 4][8 channels][4 inputs] bytes: low nibbles are of channels 0 to 7, high
//                      ones of 8 to 15; value = minimum + scale * code, code 0..15.
//     Activations become codes too, with a scale for each row and group. For int8 they are int16: pairs of products
//     add up exactly in int32 (VPMADDWD, VPDPWSSD), twice as many a cycle as fp32 FMA, and 15 bits cost no quality. For
//     int4 they are int8: twice as many again (VPMADDUBSW, VPDPBUSD), and exact as well, since 32 products of 4 and 7
//     bits add up in int16.
//
// Every channel's sum is the same chain of operations for AVX2 and for AVX-512: the same bits.
//
// A panel's channels come one after the other in memory, so a decode step reads each weight once, in order.
#pragma once

#include <algorithm>

#include "simd.hpp"

namespace pagoda {

inline constexpr int kPanel = 16;      // output channels of a panel
inline constexpr int kTogether = 4;    // panels that are best computed together, and at most
inline constexpr int kRows = 96;       // rows computed against a panel before the next: they and it stay in L2
inline constexpr int kAhead = 4096;    // bytes from the fetching of codes to their use, where they are read in order
inline constexpr int kPerPanel = kPanel / kLanes;  // vectors of a panel's channels
inline constexpr int kFloatRows = kPerPanel == 1 ? 8 : 6;  // rows of a run: their sums fill the registers
inline constexpr int kCodeRows = kPerPanel == 1 ? 8 : 4;   // the same of codes
inline constexpr int kInputs = 192;    // inputs of a panel that all rows pass at a time: they stay in L1

enum class WeightType : int32_t { kFp32 = 0, kFp16 = 1, kBf16 = 2, kFp24 = 3, kInt8 = 4, kInt4 = 5 };

inline constexpr int group_inputs(WeightType type) {
  return type == WeightType::kInt8 ? 64 : type == WeightType::kInt4 ? 32 : 1;
}

inline constexpr size_t group_bytes(WeightType type) {
  return type == WeightType::kInt8 ? 32 + 64 * kPanel : type == WeightType::kInt4 ? 64 + 32 * kPanel / 2 : 0;
}

inline constexpr size_t header_bytes(WeightType type) { return type == WeightType::kInt8 ? 32 : 64; }

inline bool quantised(WeightType type) { return type >= WeightType::kInt8; }

inline size_t panel_bytes(WeightType type, int inputs) {
  switch (type) {
    case WeightType::kFp32:
      return size_t(inputs) * kPanel * 4;
    case WeightType::kFp16:
    case WeightType::kBf16:
      return size_t(inputs) * kPanel * 2;
    case WeightType::kFp24:
      return size_t(inputs) * Fp24::kSixteen;
    default:
      return size_t(inputs + group_inputs(type) - 1) / group_inputs(type) * group_bytes(type);
  }
}

// Bytes of the codes of a row's group.
inline constexpr size_t code_bytes(WeightType type) { return type == WeightType::kInt8 ? 128 : 32; }

// Rows as a linear layer reads them: fp32, or codes with a scale for each group and the sum of each group.
struct Inputs {
  const float* rows = nullptr;  // [n, stride]
  size_t stride = 0;
  const uint8_t* codes = nullptr;  // [n, groups, code_bytes]
  const float* scales = nullptr;   // [n, groups]
  const float* sums = nullptr;     // [n, groups]
  int groups = 0;
};

// Writes one row's codes, scales and sums. `row` has `width` values; the last group is filled up with zeros.
template <WeightType type>
inline void quantise_row(const float* row, int width, uint8_t* codes, float* scales, float* sums) {
  constexpr int kGroup = group_inputs(type);
  constexpr float kMost = type == WeightType::kInt8 ? 32767.0f : 127.0f;
  constexpr size_t kBytes = code_bytes(type) / kGroup;
  for (int begin = 0, g = 0; begin < width; begin += kGroup, ++g, codes += code_bytes(type)) {
    const int size = std::min(kGroup, width - begin);
    __m256 most = _mm256_setzero_ps();
    const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    bool finite = true;
    for (int i = 0; i < size; i += 8) {
      const __m256 x = _mm256_and_ps(_mm256_loadu_ps(row + begin + i), magnitude);
      most = _mm256_max_ps(x, most);  // the second operand is kept where x is NaN
      finite &= _mm256_movemask_ps(_mm256_cmp_ps(x, _mm256_set1_ps(3.4e38f), _CMP_LE_OQ)) == 0xff;
    }
    const float greatest = max8(most);
    const float inverse = greatest > 0 ? kMost / greatest : 0.0f;
    int64_t sum = 0;
    __m256i sum8lanes = _mm256_setzero_si256();
    for (int i = 0; i < size; i += 8) {
      const __m256i code = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(row + begin + i), _mm256_set1_ps(inverse)));
      sum8lanes = _mm256_add_epi32(sum8lanes, code);
      const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(code), _mm256_extracti128_si256(code, 1));
      auto* to = reinterpret_cast<__m128i*>(codes + i * kBytes);
      if constexpr (kBytes == 2) {
        _mm_storeu_si128(to, words);
      } else {
        _mm_storel_epi64(to, _mm_packs_epi16(words, words));
      }
    }
    std::memset(codes + size * kBytes, 0, (kGroup - size) * kBytes);
    alignas(32) int32_t parts[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(parts), sum8lanes);
    for (const int32_t part : parts) sum += part;
    // a NaN or an infinity must reach the logits, and a code cannot carry it
    scales[g] = finite ? greatest / kMost : NAN;
    sums[g] = scales[g] * static_cast<float>(sum);
  }
}

namespace detail {

// c[p][m][16] += rows[m][0..inputs) x panel p, the panels `apart` elements from each other.
//
// Every sum is one chain of FMAs in the order of the inputs, whatever MR and P are: a row's result is the same bits
// alone and among others. One row waits for memory, and several panels at once are streams that the processor sees for
// itself. More rows compute in between: weights are fetched from `ahead` on meanwhile, `pace` bytes for each input.
template <int MR, int P, class Weights>
inline void multiply(const float* rows, size_t stride, const typename Weights::Element* panel, size_t apart, int inputs,
                     const char* ahead, size_t pace, float* c) {
  constexpr int kAll = kPerPanel * P;
  const auto at = [](int m, int i) { return (i / kPerPanel * MR + m) * kPanel + i % kPerPanel * kLanes; };
  Lanes sum[MR][kAll];
#pragma GCC unroll 8
  for (int m = 0; m < MR; ++m) {
#pragma GCC unroll 8
    for (int i = 0; i < kAll; ++i) sum[m][i] = load<Lanes>(c + at(m, i));
  }
  for (int k = 0; k < inputs; ++k, panel += Weights::kSixteen, ahead += pace) {
    if constexpr (P == 1) fetch(ahead);
    Lanes w[kAll];
#pragma GCC unroll 8
    for (int i = 0; i < kAll; ++i) {
      w[i] = Weights::template load<Lanes>(panel + i / kPerPanel * apart, i % kPerPanel * kLanes);
    }
#pragma GCC unroll 8
    for (int m = 0; m < MR; ++m) {
      const Lanes x = spread<Lanes>(rows + m * stride + k);
#pragma GCC unroll 8
      for (int i = 0; i < kAll; ++i) sum[m][i] = multiply_add(x, w[i], sum[m][i]);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < MR; ++m) {
#pragma GCC unroll 8
    for (int i = 0; i < kAll; ++i) store(c + at(m, i), sum[m][i]);
  }
}

// Calls work.operator()<N>() for the N that is `count`, out of 1..most.
template <int most, class Work>
[[gnu::always_inline]] inline void with_constant(int count, const Work& work) {
  if constexpr (most > 1) {
    if (count < most) return with_constant<most - 1>(count, work);
  }
  work.template operator()<most>();
}

// How many rows a run computes when `n` are left: the runs of a panel are even, for a short one is a slow one.
inline int run_of(int n, int most) {
  const int runs = (n + most - 1) / most;
  return (n + runs - 1) / runs;
}

// c[m][16] += rows x panel for n rows in runs, which share the fetching of `ahead_bytes` from `ahead` on.
template <class Weights>
inline void multiply_rows(const float* rows, size_t stride, const typename Weights::Element* panel, int inputs, int n,
                          const char* ahead, size_t ahead_bytes, float* c) {
  const size_t pace = ahead_bytes / inputs * run_of(n, kFloatRows) / n;
  for (int m = 0, run = 0; m < n; m += run, ahead += pace * inputs) {
    run = run_of(n - m, kFloatRows);
    const float* from = rows + m * stride;
    float* to = c + m * kPanel;
    with_constant<kFloatRows>(run, [&]<int rows_of_run>() {
      multiply<rows_of_run, 1, Weights>(from, stride, panel, 0, inputs, ahead, pace, to);
    });
  }
}

template <class Weights>
inline void panel_floats(const Inputs& in, const void* panel, int inputs, int first, int n, float* c) {
  using Element = typename Weights::Element;
  // Up to so many rows, widening in registers each time is cheaper than once to memory: with AVX-512 always.
  constexpr int kDirect = kPerPanel == 1 ? kRows : 12;
  const auto* weights = static_cast<const Element*>(panel);
  alignas(64) float expanded[kInputs * kPanel];
  for (int k = 0, size = 0; k < inputs; k += size) {
    size = run_of(inputs - k, kInputs);
    const float* rows = in.rows + first * in.stride + k;
    const Element* part = weights + size_t(k) * Weights::kSixteen;
    const size_t bytes = sizeof(Element) * size * Weights::kSixteen;
    const char* ahead = reinterpret_cast<const char*>(part) + bytes;  // the part after this
    if (std::is_same_v<Element, float> || n <= kDirect) {
      multiply_rows<Weights>(rows, in.stride, part, size, n, ahead, bytes, c);
      continue;
    }
    for (int i = 0; i < size; ++i) {
      for (int lane = 0; lane < kPanel; lane += kLanes) {
        store(expanded + i * kPanel + lane, Weights::template load<Lanes>(part + i * Weights::kSixteen, lane));
      }
    }
    multiply_rows<Fp32>(rows, in.stride, expanded, size, n, ahead, bytes, c);
  }
}

template <class Weights>
inline void panels_floats(const Inputs& in, const void* panel, int panels, int inputs, int first, int n, float* c) {
  const auto* weights = static_cast<const typename Weights::Element*>(panel);
  const float* rows = in.rows + first * in.stride;
  const size_t apart = size_t(inputs) * Weights::kSixteen;
  if (n == 1 && panels == 4) return multiply<1, 4, Weights>(rows, in.stride, weights, apart, inputs, nullptr, 0, c);
  if (n == 1 && panels == 2) return multiply<1, 2, Weights>(rows, in.stride, weights, apart, inputs, nullptr, 0, c);
  if (n == 2 && panels == 4) {
    multiply<2, 2, Weights>(rows, in.stride, weights, apart, inputs, nullptr, 0, c);
    return multiply<2, 2, Weights>(rows, in.stride, weights + 2 * apart, apart, inputs, nullptr, 0, c + 4 * kPanel);
  }
  for (int p = 0; p < panels; ++p) panel_floats<Weights>(in, weights + p * apart, inputs, first, n, c + p * n * kPanel);
}

// 32 bytes of codes as vectors of channels: int8's as int16 of two inputs, int4's as bytes of four.
template <WeightType type>
inline void widen_codes(const uint8_t* codes, IntLanes* to) {
#ifdef __AVX512VNNI__
  const __m256i all = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
  if constexpr (type == WeightType::kInt8) {
    to[0] = _mm512_cvtepi8_epi16(all);
  } else {
    const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(all), _mm256_srli_epi16(all, 4), 1);
    to[0] = _mm512_and_si512(both, _mm512_set1_epi8(15));
  }
#else
  if constexpr (type == WeightType::kInt8) {
    const auto* halves = reinterpret_cast<const __m128i*>(codes);
    to[0] = _mm256_cvtepi8_epi16(_mm_loadu_si128(halves));
    to[1] = _mm256_cvtepi8_epi16(_mm_loadu_si128(halves + 1));
  } else {
    const __m256i nibble = _mm256_set1_epi8(15);
    const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
    to[0] = _mm256_and_si256(both, nibble);
    to[1] = _mm256_and_si256(_mm256_srli_epi16(both, 4), nibble);
  }
#endif
}

// The four bytes of a row's codes that go with 32 bytes of weights, for every channel.
inline IntLanes codes_of_step(const uint8_t* codes, int step) {
  int32_t four;
  std::memcpy(&four, codes + 4 * step, sizeof four);
#ifdef __AVX512VNNI__
  return _mm512_set1_epi32(four);
#else
  return _mm256_set1_epi32(four);
#endif
}

// Adds products: to int32 of a channel, but AVX2 those of int4 to two int16 of a channel.
template <WeightType type>
inline IntLanes accumulate(IntLanes sum, IntLanes weights, IntLanes codes) {
#ifdef __AVX512VNNI__
  if constexpr (type == WeightType::kInt8) return _mm512_dpwssd_epi32(sum, weights, codes);
  return _mm512_dpbusd_epi32(sum, weights, codes);
#else
  if constexpr (type == WeightType::kInt8) return _mm256_add_epi32(sum, _mm256_madd_epi16(codes, weights));
  return _mm256_add_epi16(sum, _mm256_maddubs_epi16(weights, codes));
#endif
}

// What has been added up for each channel.
template <WeightType type>
inline Lanes floats_of(IntLanes sum) {
#ifdef __AVX512VNNI__
  return _mm512_cvtepi32_ps(sum);
#else
  if constexpr (type == WeightType::kInt4) sum = _mm256_madd_epi16(sum, _mm256_set1_epi16(1));
  return _mm256_cvtepi32_ps(sum);
#endif
}

// What stands before a group's codes. It is read as a whole before anything is stored: the compiler cannot know that
// stores leave it alone.
template <WeightType type>
struct Header {
  explicit Header(const uint8_t* at) {
    const auto* halves = reinterpret_cast<const uint16_t*>(at);
    for (int i = 0; i < kPerPanel; ++i) {
      scale[i] = Fp16::load<Lanes>(halves + kLanes * i);
      if constexpr (type == WeightType::kInt4) minimum[i] = Fp16::load<Lanes>(halves + kPanel + kLanes * i);
    }
  }

  Lanes scale[kPerPanel], minimum[kPerPanel];
};

// c[16] += scale of row and channel x products of their codes [+ minimum x sum of the row]
template <WeightType type>
inline void add_group(const Header<type>& header, const IntLanes* products, const float* scale, const float* sum,
                      float* c) {
  const Lanes own = spread<Lanes>(scale);
  for (int i = 0; i < kPerPanel; ++i) {
    const Lanes both = header.scale[i] * own;
    Lanes total = multiply_add(floats_of<type>(products[i]), both, load<Lanes>(c + kLanes * i));
    if constexpr (type == WeightType::kInt4) total = multiply_add(header.minimum[i], spread<Lanes>(sum), total);
    store(c + kLanes * i, total);
  }
}

// How often 32 bytes of weights make a group.
template <WeightType type>
inline constexpr int kSteps = int((group_bytes(type) - header_bytes(type)) / 32);

// c[m][16] += scale of row and channel x (codes of the rows x codes of the group) [+ minimum x sum of the row]
// `weights`: the group's codes, widened.
template <int MR, WeightType type>
inline void multiply_group(const Inputs& in, int first, int group, const uint8_t* at, const IntLanes* weights,
                           float* c) {
  IntLanes sum[MR][kPerPanel];
  for (auto& row : sum)
    for (auto& lanes : row) lanes = IntLanes{};
  const size_t stride = in.groups * code_bytes(type);
  const uint8_t* codes = in.codes + first * stride + group * code_bytes(type);
#pragma GCC unroll 2
  for (int step = 0; step < kSteps<type>; ++step) {
    // loaded once: as operands of the products they would be loaded for every row
    IntLanes first_half = weights[kPerPanel * step], second_half{};
    asm("" : "+v"(first_half));
    if constexpr (kPerPanel == 2) {
      second_half = weights[kPerPanel * step + 1];
      asm("" : "+v"(second_half));
    }
#pragma GCC unroll 8
    for (int m = 0; m < MR; ++m) {
      const IntLanes x = codes_of_step(codes + m * stride, step);
      sum[m][0] = accumulate<type>(sum[m][0], first_half, x);
      if constexpr (kPerPanel == 2) sum[m][1] = accumulate<type>(sum[m][1], second_half, x);
    }
  }
  const Header<type> header(at);
  const size_t groups = in.groups;
  const float* scale = in.scales + first * groups + group;
  const float* sum_of_codes = in.sums + first * groups + group;
#pragma GCC unroll 8
  for (int m = 0; m < MR; ++m, scale += groups, sum_of_codes += groups) {
    add_group(header, sum[m], scale, sum_of_codes, c + m * kPanel);
  }
}

// One group of one panel: c[m][16] += what its inputs add, for rows first..first+n. Fetches a group from `ahead` on.
template <WeightType type>
inline void panel_group(const Inputs& in, const uint8_t* at, int group, int first, int n, const char* ahead, float* c) {
  const uint8_t* codes = at + header_bytes(type);
  IntLanes widened[kPerPanel * kSteps<type>];
  for (int step = 0; step < kSteps<type>; ++step) {
    widen_codes<type>(codes + 32 * step, widened + kPerPanel * step);
    if (step % 2 == 0) fetch(ahead + 32 * step);
  }
  fetch(ahead + group_bytes(type) - 64);
  for (int m = 0, run = 0; m < n; m += run) {
    run = run_of(n - m, kCodeRows);
    float* to = c + m * kPanel;
    with_constant<kCodeRows>(
        run, [&]<int rows_of_run>() { multiply_group<rows_of_run, type>(in, first + m, group, at, widened, to); });
  }
}

// One row with a group of P panels, `apart` bytes from each other: codes are widened in registers. Several panels are
// streams that the processor sees for itself, but each is so short that it would see them late: a group of what comes
// after these panels is fetched from `ahead` on, in the same order.
template <int P, WeightType type>
inline void multiply_row(const Inputs& in, int row, int group, const uint8_t* at, size_t apart, const char* ahead,
                         float* c) {
  IntLanes sum[P][kPerPanel];
  for (auto& panel : sum)
    for (auto& lanes : panel) lanes = IntLanes{};
  const uint8_t* codes = in.codes + (size_t(row) * in.groups + group) * code_bytes(type);
  for (int step = 0; step < kSteps<type>; ++step) {
    const IntLanes x = codes_of_step(codes, step);
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      if (step % 2 == 0) fetch(ahead + p * apart + 32 * step);
      IntLanes w[kPerPanel];
      widen_codes<type>(at + p * apart + header_bytes(type) + 32 * step, w);
#pragma GCC unroll 2
      for (int i = 0; i < kPerPanel; ++i) sum[p][i] = accumulate<type>(sum[p][i], w[i], x);
    }
  }
  const size_t of_group = size_t(row) * in.groups + group;
  for (int p = 0; p < P; ++p) {
    fetch(ahead + p * apart + group_bytes(type) - 64);
    const Header<type> header(at + p * apart);
    add_group(header, sum[p], in.scales + of_group, in.sums + of_group, c + p * kPanel);
  }
}

template <WeightType type>
inline void panels_codes(const Inputs& in, const void* panel, int panels, int first, int n, const char* ahead,
                         float* c) {
  constexpr int kFew = 12;  // rows whose codes stay in L1 as a whole
  const auto* weights = static_cast<const uint8_t*>(panel);
  const size_t apart = in.groups * group_bytes(type);
  const auto at = [&](int p, int group) { return weights + p * apart + group * group_bytes(type); };
  if (n == 1) {
    for (int group = 0; group < in.groups; ++group, ahead += group_bytes(type)) {
      with_constant<kTogether>(panels, [&]<int together>() {
        multiply_row<together, type>(in, first, group, at(0, group), apart, ahead, c);
      });
    }
    return;
  }
  if (n <= kFew) {  // weights in the order in which they lie: memory is what bounds few rows
    for (int p = 0; p < panels; ++p) {
      float* to = c + p * n * kPanel;
      for (int group = 0; group < in.groups; ++group) {
        const auto* here = at(p, group);
        panel_group<type>(in, here, group, first, n, reinterpret_cast<const char*>(here) + kAhead, to);
      }
    }
    return;
  }
  for (int group = 0; group < in.groups; ++group) {  // the rows' codes of a group stay in L1 while the panels pass
    for (int p = 0; p < panels; ++p, ahead += group_bytes(type)) {
      panel_group<type>(in, at(p, group), group, first, n, ahead, c + p * n * kPanel);
    }
  }
}

}  // namespace detail

// Computes c [panels, n, 16] = rows first..first+n of `in` x panels that follow each other. Best is kTogether of them.
// What will be read next is at `ahead`: codes are fetched from there meanwhile, as many as these panels have.
inline void multiply_panels(const Inputs& in, WeightType type, const void* panel, int panels, int inputs, int first,
                            int n, const char* ahead, float* c) {
  std::memset(c, 0, sizeof(float) * panels * n * kPanel);
  switch (type) {
    case WeightType::kFp32: return detail::panels_floats<Fp32>(in, panel, panels, inputs, first, n, c);
    case WeightType::kFp16: return detail::panels_floats<Fp16>(in, panel, panels, inputs, first, n, c);
    case WeightType::kBf16: return detail::panels_floats<Bf16>(in, panel, panels, inputs, first, n, c);
    case WeightType::kFp24: return detail::panels_floats<Fp24>(in, panel, panels, inputs, first, n, c);
    case WeightType::kInt8: return detail::panels_codes<WeightType::kInt8>(in, panel, panels, first, n, ahead, c);
    case WeightType::kInt4: return detail::panels_codes<WeightType::kInt4>(in, panel, panels, first, n, ahead, c);
  }
}

}  // namespace pagoda

// Lanes of fp32: loads that widen, and the functions that have no instruction. `Lanes` are 16 where this is compiled
// for AVX-512, and 8 where it is for AVX2.
#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

namespace pagoda {

template <class L> L zero();
template <class L> L load(const float* from);
template <class L> L spread(const float* from);

template <> inline __m256 zero() { return _mm256_setzero_ps(); }
template <> inline __m256 load(const float* from) { return _mm256_loadu_ps(from); }
template <> inline __m256 spread(const float* from) { return _mm256_broadcast_ss(from); }
inline void store(float* to, __m256 lanes) { _mm256_storeu_ps(to, lanes); }
inline __m256 multiply_add(__m256 a, __m256 b, __m256 c) { return _mm256_fmadd_ps(a, b, c); }
inline __m256 folded(__m256 lanes) { return lanes; }

#ifdef __AVX512VNNI__
template <> inline __m512 zero() { return _mm512_setzero_ps(); }
template <> inline __m512 load(const float* from) { return _mm512_loadu_ps(from); }
template <> inline __m512 spread(const float* from) { return _mm512_set1_ps(*from); }
inline void store(float* to, __m512 lanes) { _mm512_storeu_ps(to, lanes); }
inline __m512 multiply_add(__m512 a, __m512 b, __m512 c) { return _mm512_fmadd_ps(a, b, c); }
inline __m256 folded(__m512 lanes) {
  return _mm256_add_ps(_mm512_castps512_ps256(lanes), _mm512_extractf32x8_ps(lanes, 1));
}
using Lanes = __m512;
using IntLanes = __m512i;
#else
using Lanes = __m256;
using IntLanes = __m256i;
#endif
inline constexpr int kLanes = sizeof(Lanes) / sizeof(float);

// Has a line of 64 bytes come to L2. Not to L1: that waits for some twenty lines at a time, with which a core reads
// half as fast as it can.
inline void fetch(const void* line) { _mm_prefetch(static_cast<const char*>(line), _MM_HINT_T1); }

// How weights may lie: kSixteen elements are 16 values, of which load() widens as many as there are lanes.
struct Fp32 {
  using Element = float;
  static constexpr int kSixteen = 16;
  template <class L>
  static L load(const float* sixteen, int lane) {
    return pagoda::load<L>(sixteen + lane);
  }
  template <class L>
  static L load(const float* from) {
    return pagoda::load<L>(from);
  }
  static float widen(float from) { return from; }
  static float narrow(float value) { return value; }
};

struct Fp16 {
  using Element = uint16_t;
  static constexpr int kSixteen = 16;
  template <class L>
  static L load(const uint16_t* sixteen, int lane) {
    return load<L>(sixteen + lane);
  }
  template <class L>
  static L load(const uint16_t* from) {
#ifdef __AVX512VNNI__
    if constexpr (sizeof(L) == 64) return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#endif
    if constexpr (sizeof(L) == 32) return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static float widen(uint16_t from) { return _cvtsh_ss(from); }
  static uint16_t narrow(float value) { return _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT); }
};

struct Bf16 {
  using Element = uint16_t;
  static constexpr int kSixteen = 16;
  template <class L>
  static L load(const uint16_t* sixteen, int lane) {
    return load<L>(sixteen + lane);
  }
  template <class L>
  static L load(const uint16_t* from) {
#ifdef __AVX512VNNI__
    if constexpr (sizeof(L) == 64) {
      const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
      return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
    }
#endif
    if constexpr (sizeof(L) == 32) {
      const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
      return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
    }
  }
  static float widen(uint16_t from) {
    const uint32_t bits = static_cast<uint32_t>(from) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }
  // To nearest, ties to even; a NaN stays one.
  static uint16_t narrow(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>((bits >> 16) | 0x40);
    return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
  }
};

// The upper 24 bits of fp32: of sixteen values the upper halves, then the third bytes.
struct Fp24 {
  using Element = uint8_t;
  static constexpr int kSixteen = 48;
  template <class L>
  static L load(const uint8_t* sixteen, int lane) {
    const auto* halves = sixteen + 2 * lane;
    const auto* bytes = sixteen + 32 + lane;
#ifdef __AVX512VNNI__
    if constexpr (sizeof(L) == 64) {
      const __m512i high = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(halves)));
      const __m512i third = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
      return _mm512_castsi512_ps(_mm512_or_si512(_mm512_slli_epi32(high, 16), _mm512_slli_epi32(third, 8)));
    }
#endif
    if constexpr (sizeof(L) == 32) {
      const __m256i high = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(halves)));
      const __m256i third = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes)));
      return _mm256_castsi256_ps(_mm256_or_si256(_mm256_slli_epi32(high, 16), _mm256_slli_epi32(third, 8)));
    }
  }
  static float widen(const uint8_t* sixteen, int at) {
    uint16_t high;
    std::memcpy(&high, sixteen + 2 * at, sizeof high);
    const uint32_t bits = static_cast<uint32_t>(high) << 16 | static_cast<uint32_t>(sixteen[32 + at]) << 8;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }
};

inline float sum8(__m256 lanes) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps(lanes, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

inline float max8(__m256 lanes) {
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps(lanes, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

// e^x within 2 ulp: Cody-Waite reduction by ln 2 and the minimax polynomial of the Cephes library (Moshier, 1989).
// Below -87.3 it is 0 where the true value is denormal or less; NaN stays NaN.
inline __m256 exp8(__m256 x) {
  const __m256 low = _mm256_set1_ps(-87.33654f), high = _mm256_set1_ps(88.72283f);
  const __m256 held = _mm256_min_ps(high, _mm256_max_ps(low, x));
  const __m256 n = _mm256_round_ps(_mm256_mul_ps(held, _mm256_set1_ps(1.44269504f)),
                                   _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), held);
  r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), r);
  __m256 y = _mm256_set1_ps(1.9875691500e-4f);
  y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(1.3981999507e-3f));
  y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(8.3334519073e-3f));
  y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(4.1665795894e-2f));
  y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(1.6666665459e-1f));
  y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(5.0000001201e-1f));
  y = _mm256_add_ps(_mm256_fmadd_ps(y, _mm256_mul_ps(r, r), r), _mm256_set1_ps(1.0f));
  // 2^n in two factors, since n may be 128
  const __m256i whole = _mm256_cvtps_epi32(n);
  const __m256i half = _mm256_srai_epi32(whole, 1);
  const auto power = [](__m256i e) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(e, _mm256_set1_epi32(127)), 23));
  };
  y = _mm256_mul_ps(_mm256_mul_ps(y, power(half)), power(_mm256_sub_epi32(whole, half)));
  y = _mm256_blendv_ps(y, _mm256_setzero_ps(), _mm256_cmp_ps(x, low, _CMP_LT_OQ));
  return _mm256_blendv_ps(y, x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

inline __m256 sigmoid8(__m256 x) {
  const __m256 one = _mm256_set1_ps(1.0f);
  return _mm256_div_ps(one, _mm256_add_ps(one, exp8(_mm256_sub_ps(_mm256_setzero_ps(), x))));
}

// tanh x = 2 sigmoid(2x) - 1
inline __m256 tanh8(__m256 x) {
  return _mm256_fmsub_ps(_mm256_set1_ps(2.0f), sigmoid8(_mm256_add_ps(x, x)), _mm256_set1_ps(1.0f));
}

enum class Activation : int32_t { kNone = 0, kSilu = 1, kGeluTanh = 2 };

// SiLU (Elfwing et al., 2017), or GELU in its tanh form (Hendrycks and Gimpel, 2016).
inline __m256 activate8(Activation kind, __m256 x) {
  if (kind == Activation::kSilu) return _mm256_mul_ps(x, sigmoid8(x));
  if (kind == Activation::kNone) return x;
  const __m256 cube = _mm256_mul_ps(_mm256_mul_ps(x, x), x);
  const __m256 sum = _mm256_fmadd_ps(_mm256_set1_ps(0.044715f), cube, x);
  const __m256 inner = _mm256_mul_ps(_mm256_set1_ps(0.7978845608f), sum);
  const __m256 half = _mm256_mul_ps(_mm256_set1_ps(0.5f), x);
  return _mm256_fmadd_ps(half, tanh8(inner), half);
}

}  // namespace pagoda

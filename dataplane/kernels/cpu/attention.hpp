// Attention that reads the paged KV pool directly (paged: Kwon et al., 2023; the softmax of parts: Milakov and
// Gimelshein, 2018; grouped queries: Ainslie et al., 2023).
//
//   pool of a layer: [block][slot][K heads | V heads], a head `dim` elements; int8 with one fp32 scale for each head of
//   a slot beside it: [block][slot][2][kv_heads].
//
// A context is cut at multiples of kPart positions. Every part is computed by itself, then the parts are merged in
// their order, by one thread or by several: a row's result is the same bits alone and among others, in a chunk of a
// prompt and as a decode step.
#pragma once

#include <algorithm>
#include <cfloat>

#include "linear.hpp"
#include "simd.hpp"

namespace pagoda {

inline constexpr int kPart = 64;         // positions of a part: as fp32, keys of 64 take half of L1
inline constexpr int kQueries = 8;       // queries of a prompt that are computed together
inline constexpr int kVectors = 3;       // that are computed together: so few keep their sums in registers
inline constexpr int kMaxGroup = 64;     // query heads of one KV head
inline constexpr int kMaxVectors = 512;  // of a piece: queries times heads
inline constexpr int kMaxDim = 1024;

enum class KvType : int32_t { kFp32 = 0, kFp16 = 1, kBf16 = 2, kInt8 = 3 };

struct Pool {
  uint8_t* data = nullptr;
  float* scales = nullptr;  // int8 only
  KvType type = KvType::kFp32;
  int32_t layers = 0, blocks = 0, block_size = 0, kv_heads = 0, dim = 0;

  static size_t element_bytes(KvType type) { return type == KvType::kFp32 ? 4 : type == KvType::kInt8 ? 1 : 2; }
  // Index of the first element of a head: `kind` is 0 for keys, 1 for values.
  size_t head(int layer, size_t slot, int kind, int head) const {
    return (((size_t(layer) * blocks * block_size + slot) * 2 + kind) * kv_heads + head) * dim;
  }
  size_t scale(int layer, size_t slot, int kind, int head) const {
    return ((size_t(layer) * blocks * block_size + slot) * 2 + kind) * kv_heads + head;
  }
};

// One sequence's part of a step: `count` tokens from `position` on, its blocks in `table`.
struct Sequence {
  int32_t first;  // its first token among the step's
  int32_t count;
  int32_t position;
  int32_t blocks;
  const int32_t* table;
};

inline size_t slot_of(const Sequence& sequence, int position, int block_size) {
  return size_t(sequence.table[position / block_size]) * block_size + position % block_size;
}

inline void write_head(const Pool& pool, int layer, size_t slot, int kind, int head, const float* values) {
  const size_t at = pool.head(layer, slot, kind, head);
  const int dim = pool.dim;
  switch (pool.type) {
    case KvType::kFp32: std::memcpy(reinterpret_cast<float*>(pool.data) + at, values, sizeof(float) * dim); return;
    case KvType::kFp16:
      for (int i = 0; i < dim; ++i) reinterpret_cast<uint16_t*>(pool.data)[at + i] = Fp16::narrow(values[i]);
      return;
    case KvType::kBf16:
      for (int i = 0; i < dim; ++i) reinterpret_cast<uint16_t*>(pool.data)[at + i] = Bf16::narrow(values[i]);
      return;
    case KvType::kInt8: {
      float most = 0;
      bool finite = true;
      for (int i = 0; i < dim; ++i) {
        most = std::max(most, std::fabs(values[i]));
        finite &= std::isfinite(values[i]);
      }
      const float inverse = most > 0 && finite ? 127.0f / most : 0.0f;
      pool.scales[pool.scale(layer, slot, kind, head)] = finite ? most / 127.0f : NAN;
      for (int i = 0; i < dim; ++i) {
        reinterpret_cast<int8_t*>(pool.data)[at + i] = static_cast<int8_t>(std::nearbyint(values[i] * inverse));
      }
    }
  }
}

// A part of a context, or what of it a window leaves: positions [begin, begin + count), and the slot of each.
struct Part {
  int begin = 0, count = 0;
  size_t slots[kPart + 3];  // they are read by four: behind the last, it comes again

  void lay_out(const Sequence& sequence, int first, int last, int block_size) {
    begin = first;
    count = std::max(0, last - first);
    int block = first / block_size, offset = first % block_size;
    for (int t = 0; t < count; ++t) {
      slots[t] = size_t(sequence.table[block]) * block_size + offset;
      if (++offset == block_size) ++block, offset = 0;
    }
    for (int t = count; t < count + 3; ++t) slots[t] = count > 0 ? slots[count - 1] : 0;
  }
};

namespace detail {

// Keys or values of one head, as they are stored: rows[t] is position t's, and loads 8 or 16 at a time.
template <class Type>
struct Stored {
  struct Row {
    const typename Type::Element* at;
    template <class L>
    L load(int i) const {
      return Type::template load<L>(at + i);
    }
  };

  const typename Type::Element* data;
  size_t apart;
  const size_t* slots;

  Row operator[](int t) const { return {data + slots[t] * apart}; }
};

struct StoredCodes {
  struct Row {
    const int8_t* at;
    const float* scale;
    template <class L>
    L load(int i) const {
      const auto* codes = reinterpret_cast<const __m128i*>(at + i);
#ifdef __AVX512VNNI__
      if constexpr (sizeof(L) == 64) {
        return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(codes))) * spread<L>(scale);
      }
#endif
      if constexpr (sizeof(L) == 32) {
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(codes))) * spread<L>(scale);
      }
    }
  };

  const int8_t* data;
  const float* scales;
  size_t apart, scales_apart;
  const size_t* slots;

  Row operator[](int t) const { return {data + slots[t] * apart, scales + slots[t] * scales_apart}; }
};

// The same as fp32, one after the other: worth making where they are read more than once.
struct Tile {
  struct Row {
    const float* at;
    template <class L>
    L load(int i) const {
      return pagoda::load<L>(at + i);
    }
  };

  const float* data;
  int dim;

  Row operator[](int t) const { return {data + t * dim}; }
};

// Calls one(rows) with the keys or values (`kind`) of a head at the slots of a part.
template <class One>
inline void with_stored(const Pool& pool, int layer, int kind, int head, const Part& part, One one) {
  const size_t first = pool.head(layer, 0, kind, head), apart = pool.head(0, 1, 0, 0);
  const auto* halves = reinterpret_cast<const uint16_t*>(pool.data) + first;
  switch (pool.type) {
    case KvType::kFp32: return one(Stored<Fp32>{reinterpret_cast<const float*>(pool.data) + first, apart, part.slots});
    case KvType::kFp16: return one(Stored<Fp16>{halves, apart, part.slots});
    case KvType::kBf16: return one(Stored<Bf16>{halves, apart, part.slots});
    case KvType::kInt8: {
      const float* scales = pool.scales + pool.scale(layer, 0, kind, head);
      const auto* codes = reinterpret_cast<const int8_t*>(pool.data) + first;
      return one(StoredCodes{codes, scales, apart, pool.scale(0, 1, 0, 0), part.slots});
    }
  }
}

template <class Rows>
inline Tile widened(const Rows& rows, int count, int dim, float* to) {
  for (int t = 0; t < count; ++t) {
    const auto row = rows[t];
    for (int i = 0; i < dim; i += 8) store(to + t * dim + i, row.template load<__m256>(i));
  }
  return {to, dim};
}

// The slots of a part, all heads' keys and values, in the order in which they lie: so memory gives them three times as
// fast as a head at a time, and who attends to a head finds them in L2. They are fetched a few lines at a time while
// the part before is computed: as many for every key and value that is read there.
class Slots {
 public:
  Slots() = default;
  Slots(const Pool& pool, int layer, const Part& part) : next_(part.slots), left_(part.count) {
    const size_t element = Pool::element_bytes(pool.type);
    data_ = pool.data + element * pool.head(layer, 0, 0, 0);
    bytes_ = element * pool.head(0, 1, 0, 0);
    pace_ = static_cast<int>((element * pool.dim + 63) / 64);
    advance();
  }

  // Fetches what goes with `rows` keys or values.
  void fetch(int rows) {
    for (int line = rows * pace_; line > 0 && at_ < end_; --line) {
      pagoda::fetch(at_);
      step();
    }
  }

  // Reads what was not fetched.
  void read() {
    for (; at_ < end_; step()) static_cast<void>(*static_cast<const volatile uint8_t*>(at_));
  }

 private:
  void step() {
    at_ += 64;
    if (at_ >= end_) advance();
  }

  void advance() {
    if (left_ == 0) return;
    --left_;
    at_ = data_ + *next_++ * bytes_;
    end_ = at_ + bytes_;
  }

  const uint8_t* data_ = nullptr;
  const uint8_t* at_ = nullptr;
  const uint8_t* end_ = nullptr;
  const size_t* next_ = nullptr;
  size_t bytes_ = 0;
  int left_ = 0;
  int pace_ = 0;
};

struct Nothing {
  void fetch(int) {}
};

// scores[r][0..4) = query r . keys t..t+3, for R queries
template <class L, int R, class Rows, class Next>
inline void score_four(const float* const* queries, const Rows& keys, int t, int dim, float scale,
                       float* const* scores, Next& ahead) {
  ahead.fetch(4);
  L sum[R][4];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) sum[r][0] = sum[r][1] = sum[r][2] = sum[r][3] = zero<L>();
  const typename Rows::Row four[4] = {keys[t], keys[t + 1], keys[t + 2], keys[t + 3]};
  constexpr int kWide = sizeof(L) / sizeof(float);
  for (int i = 0; i < dim; i += kWide) {
    L k[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) k[j] = four[j].template load<L>(i);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const L q = load<L>(queries[r] + i);
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) sum[r][j] = multiply_add(q, k[j], sum[r][j]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    const __m256 pairs = _mm256_hadd_ps(_mm256_hadd_ps(folded(sum[r][0]), folded(sum[r][1])),
                                        _mm256_hadd_ps(folded(sum[r][2]), folded(sum[r][3])));
    const __m128 sums = _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1));
    _mm_storeu_ps(scores[r], _mm_mul_ps(sums, _mm_set1_ps(scale)));
  }
}

// out[r][i..) = sum over t of weights[r][t] * values[t][i..), for C vectors of lanes
template <class L, int R, int C, class Rows, class Next>
inline void weigh(const float* const* weights, const Rows& values, int count, int i, float* const* out, Next& ahead) {
  constexpr int kWide = sizeof(L) / sizeof(float);
  L sum[R][C];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) sum[r][c] = zero<L>();
  }
  for (int t = 0; t < count; ++t) {
    ahead.fetch(i == 0);
    const auto row = values[t];
    L w[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) w[r] = spread<L>(weights[r] + t);
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      const L v = row.template load<L>(i + kWide * c);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) sum[r][c] = multiply_add(w[r], v, sum[r][c]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) store(out[r] + i + kWide * c, sum[r][c]);
  }
}

template <int R, class Rows, class Next>
inline void weigh_all(const float* const* weights, const Rows& values, int count, int dim, float* const* out,
                      Next& ahead) {
  int i = 0;
  for (; i + 4 * kLanes <= dim; i += 4 * kLanes) weigh<Lanes, R, 4>(weights, values, count, i, out, ahead);
  for (; i + 32 <= dim; i += 32) weigh<__m256, R, 4>(weights, values, count, i, out, ahead);
  for (; i < dim; i += 8) weigh<__m256, R, 1>(weights, values, count, i, out, ahead);
}

}  // namespace detail

// What one thread needs to attend; made once, as large as the program's attention asks for.
struct AttentionScratch {
  float* tile;     // [kPart, dim], 32-byte aligned
  float* scores;   // [vectors, kPart]
  float* part;     // [vectors, dim]
  float* running;  // [vectors, dim]
};

struct Attention {
  int layer;
  int heads;       // of queries
  float scale;     // of the scores
  float softcap;   // 0: none; else scores become softcap * tanh(score / softcap)
  int window;      // 0: none; else a query sees its own position and window - 1 before it
};

// One piece of work: queries [begin, end) of a sequence, KV heads [first_head, last_head), and of its context either
// all, or the parts [first_part, last_part), whose results go to `Partials` from `partial` on.
struct Piece {
  int sequence;
  int first_head, last_head;
  int begin, end;
  int first_part = 0, last_part = 0;
  int partial = -1;
};

// Results of parts of contexts that several threads attend to, one query each: of every head the greatest score, the
// sum of the exponentials relative to it, and the weighted values.
struct Partials {
  float* data = nullptr;
  int heads = 0, dim = 0;

  size_t floats() const { return size_t(heads) * (dim + 2); }
  float* most(int at) const { return data + at * floats(); }
  float* total(int at) const { return most(at) + heads; }
  float* values(int at, int head) const { return most(at) + 2 * heads + size_t(head) * dim; }
};

namespace detail {

// Turns scores [count] of one vector into weights, in place: exponentials relative to the greatest of those it sees,
// which are [low, high). Behind the last, up to a multiple of 8, is room.
inline void softmax(const Attention& op, float* scores, int low, int high, int count, float& most, float& total) {
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i least = _mm256_set1_epi32(low - 1), bound = _mm256_set1_epi32(high);
  const __m256 nothing = _mm256_set1_ps(-INFINITY);
  __m256 greatest = nothing;
  for (int t = 0; t < count; t += 8) {
    __m256 s = _mm256_loadu_ps(scores + t);
    if (op.softcap > 0) {
      s = _mm256_mul_ps(tanh8(_mm256_div_ps(s, _mm256_set1_ps(op.softcap))), _mm256_set1_ps(op.softcap));
    }
    const __m256i place = _mm256_add_epi32(lanes, _mm256_set1_epi32(t));
    const __m256i seen = _mm256_and_si256(_mm256_cmpgt_epi32(place, least), _mm256_cmpgt_epi32(bound, place));
    s = _mm256_blendv_ps(nothing, s, _mm256_castsi256_ps(seen));
    _mm256_storeu_ps(scores + t, s);
    greatest = _mm256_max_ps(greatest, s);
  }
  most = max8(greatest);
  total = 0;
  if (low >= high) {
    std::fill_n(scores, count, 0.0f);
    return;
  }
  const __m256 top = _mm256_set1_ps(most);
  __m256 sum = _mm256_setzero_ps();
  for (int t = 0; t < count; t += 8) {
    const __m256 weight = exp8(_mm256_sub_ps(_mm256_loadu_ps(scores + t), top));
    _mm256_storeu_ps(scores + t, weight);
    sum = _mm256_add_ps(sum, weight);
  }
  total = sum8(sum);
}

// Calls one.operator()<R>(first) for runs of R vectors, at most three and all alike.
template <class One>
inline void for_runs(int vectors, One one) {
  for (int v = 0, run = 0; v < vectors; v += run) {
    run = run_of(vectors - v, kVectors);
    if (run == 3) one.template operator()<3>(v);
    if (run == 2) one.template operator()<2>(v);
    if (run == 1) one.template operator()<1>(v);
  }
}

}  // namespace detail

// Attends with a piece's vectors of one KV head (query, head of its group) to a part of the context.
// most [vectors], total [vectors]: the greatest score and the sum of the exponentials relative to it; scratch.part: the
// weighted values. A vector that sees nothing of the part has total 0.
inline void attend_part(const Attention& op, const Pool& pool, const Sequence& sequence, const Piece& piece, int head,
                        const float* queries, size_t stride, const Part& part, AttentionScratch& scratch, float* most,
                        float* total, detail::Slots& ahead) {
  const int dim = pool.dim, group = op.heads / pool.kv_heads, vectors = (piece.end - piece.begin) * group;
  const float* query[kQueries * kMaxGroup];
  int low[kQueries * kMaxGroup], high[kQueries * kMaxGroup];
  for (int v = 0; v < vectors; ++v) {
    const int q = piece.begin + v / group, end = sequence.position + q + 1;
    query[v] = queries + size_t(sequence.first + q) * stride + (head * group + v % group) * dim;
    high[v] = std::min(part.count, end - part.begin);
    low[v] = op.window > 0 ? std::max(0, end - op.window - part.begin) : 0;
  }
  const auto score = [&](const auto& keys, auto& next) {
    detail::for_runs(vectors, [&]<int R>(int v) {
      float* to[R];
      for (int t = 0; t < part.count; t += 4) {
        for (int r = 0; r < R; ++r) to[r] = scratch.scores + (v + r) * kPart + t;
        if (dim % kLanes == 0) {
          detail::score_four<Lanes, R>(query + v, keys, t, dim, op.scale, to, next);
        } else {
          detail::score_four<__m256, R>(query + v, keys, t, dim, op.scale, to, next);
        }
      }
    });
  };
  const auto weigh = [&](const auto& values, auto& next) {
    detail::for_runs(vectors, [&]<int R>(int v) {
      const float* weights[R];
      float* to[R];
      for (int r = 0; r < R; ++r) {
        weights[r] = scratch.scores + (v + r) * kPart;
        to[r] = scratch.part + (v + r) * dim;
      }
      detail::weigh_all<R>(weights, values, part.count, dim, to, next);
    });
  };
  const bool once = vectors <= kVectors;
  detail::Nothing nothing;
  detail::with_stored(pool, op.layer, 0, head, part, [&](const auto& keys) {
    once ? score(keys, ahead) : score(detail::widened(keys, part.count, dim, scratch.tile), nothing);
  });
  for (int v = 0; v < vectors; ++v) {
    detail::softmax(op, scratch.scores + v * kPart, low[v], high[v], part.count, most[v], total[v]);
  }
  detail::with_stored(pool, op.layer, 1, head, part, [&](const auto& values) {
    once ? weigh(values, ahead) : weigh(detail::widened(values, part.count, dim, scratch.tile), nothing);
  });
}

// Merges one part into what runs: (most, total, values) += (part_most, part_total, part).
inline void merge_part(float& most, float& total, float* values, float part_most, float part_total, const float* part,
                       int dim) {
  if (part_total == 0) return;
  if (total == 0) {
    most = part_most;
    total = part_total;
    std::memcpy(values, part, sizeof(float) * dim);
    return;
  }
  const float top = std::max(most, part_most);
  const __m256 old_weight = exp8(_mm256_set1_ps(most - top)), new_weight = exp8(_mm256_set1_ps(part_most - top));
  for (int i = 0; i < dim; i += 8) {
    const __m256 added = _mm256_mul_ps(_mm256_loadu_ps(part + i), new_weight);
    _mm256_storeu_ps(values + i, _mm256_fmadd_ps(_mm256_loadu_ps(values + i), old_weight, added));
  }
  total = total * _mm256_cvtss_f32(old_weight) + part_total * _mm256_cvtss_f32(new_weight);
  most = top;
}

// Writes what is left to be divided by the sum of the exponentials.
inline void finish_row(const float* values, float total, int dim, float* to) {
  const __m256 inverse = _mm256_set1_ps(1.0f / total);
  for (int i = 0; i < dim; i += 8) _mm256_storeu_ps(to + i, _mm256_mul_ps(_mm256_loadu_ps(values + i), inverse));
}

// Attends with a piece, and writes [query][head][dim] rows of `out`, or the results of its parts.
inline void attend(const Attention& op, const Pool& pool, const Sequence& sequence, const Piece& piece,
                   const float* queries, size_t stride, float* out, size_t out_stride, const Partials& partials,
                   AttentionScratch& scratch) {
  const int dim = pool.dim, group = op.heads / pool.kv_heads, vectors = (piece.end - piece.begin) * group;
  const bool partial = piece.partial >= 0;
  float most[kMaxVectors], total[kMaxVectors], part_most[kMaxVectors], part_total[kMaxVectors];
  std::fill_n(total, vectors * (piece.last_head - piece.first_head), 0.0f);
  const int first_seen = op.window > 0 ? std::max(0, sequence.position + piece.begin + 1 - op.window) : 0;
  const int end = sequence.position + piece.end;  // what the last query sees ends here
  const int last = partial ? piece.last_part : (end + kPart - 1) / kPart;
  const bool all_heads = piece.last_head > piece.first_head + 1;
  Part parts[2];
  const auto lay_out = [&](int number) {
    const int from = number * kPart;
    Part& part = parts[number % 2];
    // windows only move on: nobody sees what is before the first query's
    part.lay_out(sequence, std::max(from, first_seen / 8 * 8), std::min(from + kPart, end), pool.block_size);
    return all_heads ? detail::Slots(pool, op.layer, part) : detail::Slots();
  };
  const int first = partial ? piece.first_part : first_seen / kPart;
  detail::Slots slots = lay_out(first);
  for (int number = first; number < last; ++number) {
    const Part& part = parts[number % 2];
    slots.read();
    if (number + 1 < last) slots = lay_out(number + 1);
    const int slot = piece.partial + number - piece.first_part;
    for (int head = piece.first_head; head < piece.last_head; ++head) {
      attend_part(op, pool, sequence, piece, head, queries, stride, part, scratch, part_most, part_total, slots);
      const int at = (head - piece.first_head) * vectors;
      for (int v = 0; v < vectors; ++v) {
        const float* values = scratch.part + v * dim;
        if (partial) {
          partials.most(slot)[head * group + v] = part_most[v];
          partials.total(slot)[head * group + v] = part_total[v];
          std::memcpy(partials.values(slot, head * group + v), values, sizeof(float) * dim);
        } else {
          float* running = scratch.running + size_t(at + v) * dim;
          merge_part(most[at + v], total[at + v], running, part_most[v], part_total[v], values, dim);
        }
      }
    }
  }
  if (partial) return;
  for (int head = piece.first_head; head < piece.last_head; ++head) {
    for (int v = 0; v < vectors; ++v) {
      const int q = piece.begin + v / group, at = (head - piece.first_head) * vectors + v;
      float* to = out + size_t(sequence.first + q) * out_stride + (head * group + v % group) * dim;
      finish_row(scratch.running + size_t(at) * dim, total[at], dim, to);
    }
  }
}

// Merges the `count` partial results from `first` on, in their order, into a row [head][dim]. They are overwritten.
inline void merge_partials(const Partials& partials, int first, int count, float* to) {
  for (int head = 0; head < partials.heads; ++head) {
    float& most = partials.most(first)[head];
    float& total = partials.total(first)[head];
    float* values = partials.values(first, head);
    for (int at = first + 1; at < first + count; ++at) {
      merge_part(most, total, values, partials.most(at)[head], partials.total(at)[head], partials.values(at, head),
                 partials.dim);
    }
    finish_row(values, total, partials.dim, to + size_t(head) * partials.dim);
  }
}

}  // namespace pagoda

// Runs a program of operations (dataplane.model.program) over the tokens of a step, all threads of a team together.
//
// Every operation is one or two phases with a barrier after each. Registers are [tokens, width] fp32; those of sampled
// operations have a row for each sampled token.
#include <cstdlib>
#include <new>

#include "attention.hpp"
#include "linear.hpp"
#include "simd.hpp"
#include "team.hpp"

namespace pagoda {

enum class Kind : int32_t {
  kEmbed = 0, kAngles = 1, kLinear = 2, kCache = 3, kAttention = 4, kNorm = 5, kSelect = 6, kGreedy = 7
};
enum class NormKind : int32_t { kNone = 0, kRms = 1, kLayer = 2 };

// Mirrored by dataplane.kernels.cpu.binding.Operation: keep the fields in step.
struct Operation {
  int32_t kind;
  int32_t source;       // register read; -1 where there is none
  int32_t target;       // register written
  int32_t accumulate;   // add to the target instead of replacing it
  int32_t inputs;       // width of the source
  int32_t outputs;      // width of the target; kLinear: rows of the weight matrix
  int32_t weight_type;
  int32_t activation;
  int32_t gated;        // channels come as 8 of the gate and 8 of what it opens
  int32_t layer;
  int32_t heads;        // of queries
  int32_t window;
  int32_t norm;
  int32_t angles;       // register of cosines and sines; -1: no rotary positions
  float epsilon;
  float scale;
  float softcap;
  int32_t reserved;
  const void* weight;
  const float* bias;
  const float* norm_weight;
  const float* norm_bias;
  const float* extra;   // kEmbed: learned positions; kAngles: frequencies; kCache: norm of keys (norm_weight: queries)
};

struct Step {
  int32_t tokens;
  int32_t sequences;
  int32_t sampled;
  int32_t reserved;
  const int32_t* token_ids;
  const Sequence* sequence;    // in the order of their tokens
  const int32_t* sampled_at;   // [sampled] of the tokens: whose logits are asked for
  int32_t* greedy;             // [sampled] written: the likeliest token; -1 where the logits are not finite
};

namespace {

constexpr size_t kAlignment = 64;

float* floats(size_t count) {
  void* memory = std::aligned_alloc(kAlignment, (count * sizeof(float) + kAlignment - 1) / kAlignment * kAlignment);
  if (memory == nullptr) throw std::bad_alloc();
  return static_cast<float*>(memory);
}

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
using Buffer = std::unique_ptr<float, Free>;

void normalise(NormKind kind, const float* from, const float* weight, const float* bias, int width, float epsilon,
               float* to) {
  __m256 sum = _mm256_setzero_ps(), square = _mm256_setzero_ps();
  float mean = 0;
  if (kind == NormKind::kLayer) {
    for (int i = 0; i < width; i += 8) sum = _mm256_add_ps(sum, _mm256_loadu_ps(from + i));
    mean = sum8(sum) / width;
  }
  const __m256 middle = _mm256_set1_ps(mean);
  for (int i = 0; i < width; i += 8) {
    const __m256 x = _mm256_sub_ps(_mm256_loadu_ps(from + i), middle);
    square = _mm256_fmadd_ps(x, x, square);
  }
  const __m256 factor = _mm256_set1_ps(1.0f / std::sqrt(sum8(square) / width + epsilon));
  for (int i = 0; i < width; i += 8) {
    const __m256 x = _mm256_mul_ps(_mm256_sub_ps(_mm256_loadu_ps(from + i), middle), factor);
    const __m256 scaled = _mm256_mul_ps(x, _mm256_loadu_ps(weight + i));
    _mm256_storeu_ps(to + i, bias == nullptr ? scaled : _mm256_add_ps(scaled, _mm256_loadu_ps(bias + i)));
  }
}

// One row of a matrix packed in panels.
void read_row(WeightType type, const void* weight, int inputs, int row, float* to) {
  const auto* panel = static_cast<const uint8_t*>(weight) + panel_bytes(type, inputs) * (row / kPanel);
  const int channel = row % kPanel;
  for (int k = 0; k < inputs; ++k) {
    const size_t at = size_t(k) * kPanel + channel;
    switch (type) {
      case WeightType::kFp32: to[k] = reinterpret_cast<const float*>(panel)[at]; break;
      case WeightType::kFp16: to[k] = Fp16::widen(reinterpret_cast<const uint16_t*>(panel)[at]); break;
      case WeightType::kBf16: to[k] = Bf16::widen(reinterpret_cast<const uint16_t*>(panel)[at]); break;
      case WeightType::kFp24: to[k] = Fp24::widen(panel + size_t(k) * Fp24::kSixteen, channel); break;
      case WeightType::kInt8: {
        const uint8_t* group = panel + k / 64 * group_bytes(type);
        const auto* codes = reinterpret_cast<const int8_t*>(group + 32);
        const int code = codes[(k % 64 / 2 * kPanel + channel) * 2 + k % 2];
        to[k] = Fp16::widen(reinterpret_cast<const uint16_t*>(group)[channel]) * static_cast<float>(code);
        break;
      }
      case WeightType::kInt4: {
        const uint8_t* group = panel + k / 32 * group_bytes(type);
        const auto* halves = reinterpret_cast<const uint16_t*>(group);
        const uint8_t both = group[64 + k % 32 / 4 * 32 + channel % 8 * 4 + k % 4];
        const int code = channel < 8 ? both & 15 : both >> 4;
        to[k] = std::fma(Fp16::widen(halves[channel]), static_cast<float>(code), Fp16::widen(halves[kPanel + channel]));
      }
    }
  }
}

void rotate(float* head, const float* angles, int dim) {
  // pairs lie side by side: (x0, x1) becomes (x0 cos - x1 sin, x0 sin + x1 cos)
  for (int i = 0; i < dim; i += 8) {
    const __m256 x = _mm256_loadu_ps(head + i), turn = _mm256_loadu_ps(angles + i);
    const __m256 cosine = _mm256_moveldup_ps(turn), sine = _mm256_movehdup_ps(turn);
    const __m256 swapped = _mm256_permute_ps(x, 0b10110001);
    _mm256_storeu_ps(head + i, _mm256_fmaddsub_ps(x, cosine, _mm256_mul_ps(swapped, sine)));
  }
}

}  // namespace

// Rows as the next linear layer reads them: normed, or as codes.
struct Prepared {
  Prepared() = default;
  Prepared(size_t rows, size_t widest)
      : normed(floats(rows * widest)), codes(floats(rows * widest / 2 + kAlignment)),
        scales(floats(rows * (widest / 32 + 1))), sums(floats(rows * (widest / 32 + 1))) {}

  Buffer normed, codes, scales, sums;
};

class Program {
 public:
  Program(const Operation* operations, int count, const int32_t* widths, const int32_t* sampled, int registers,
          int max_tokens, int max_sampled, int threads)
      : operations_(operations, operations + count), team_(threads), sequence_of_(max_tokens) {
    shares_.reserve(2 * count);
    for (int i = 0; i < 2 * count; ++i) shares_.emplace_back(threads);
    for (int i = 0; i < registers; ++i) {
      widths_.push_back(widths[i]);
      registers_.emplace_back(floats(size_t(sampled[i] ? max_sampled : max_tokens) * widths[i]));
    }
    size_t widest = 0;
    for (const auto& op : operations_) {
      widest = std::max<size_t>(widest, op.inputs + 64);
      if (op.kind == int32_t(Kind::kAttention)) heads_ = std::max(heads_, op.heads);
    }
    while (select_ < count && operations_[select_].kind != int32_t(Kind::kSelect)) ++select_;
    const size_t rows = std::max(max_tokens, max_sampled);
    prepared_ = Prepared(rows, widest);
    for (int i = 0; i < threads; ++i) own_.emplace_back(kOwn, widest);
    scratch_.resize(threads);
  }

  // Runs the operations [first, last) over the tokens of a step, and those from the selection on over its sampled ones:
  // a step may stop where ranks add up what they have, and begins with operation 0. The pool may move (a sleeping
  // replica gives its memory back), so every step says where it is.
  void run(const Step& step, const Pool& pool, int first, int last) {
    step_ = step;
    pool_ = pool;
    if (first == 0) lay_out();
    execute_all(first, last);
  }

  // Runs what is behind the selection for `sampled` tokens of the last step: as often as one likes, in any order.
  void finish(int sampled) {
    step_.sampled = sampled;
    execute_all(select_, static_cast<int>(operations_.size()));
  }

  float* values(int index) const { return registers_[index].get(); }
  int threads() const { return team_.threads(); }

 private:
  static constexpr int kOwn = 2;  // so few rows every thread prepares for itself: waiting for another takes longer

  // A token whose context several pieces attend to: its partial results.
  struct Cut {
    int token;
    int partial, parts;
  };

  // Which sequence a token is of, and the pieces that attention is cut into: the same for every layer.
  void lay_out() {
    pieces_.clear();
    cuts_.clear();
    int partials = 0, parts = 0;
    for (int s = 0; s < step_.sequences; ++s) parts += parts_of(step_.sequence[s]);
    const int longest = std::max(1, parts / (8 * team_.threads()));  // more parts than these are several pieces
    const int group = pool_.kv_heads ? std::max(1, heads_ / pool_.kv_heads) : 1;
    const int queries = std::clamp(24 / group, 1, kQueries);
    for (int s = 0; s < step_.sequences; ++s) {
      const Sequence& sequence = step_.sequence[s];
      for (int i = 0; i < sequence.count; ++i) sequence_of_[sequence.first + i] = s;
      const bool decodes = sequence.count == 1 && heads_ <= kMaxVectors;
      if (const int last = parts_of(sequence); decodes && last > longest) {
        for (int part = 0; part < last; part += longest) {
          pieces_.push_back({s, 0, pool_.kv_heads, 0, 1, part, std::min(part + longest, last), partials + part});
        }
        cuts_.push_back({sequence.first, partials, last});
        partials += last;
        continue;
      }
      const int together = decodes && step_.sequences >= 2 * team_.threads() ? pool_.kv_heads : 1;
      for (int begin = 0; begin < sequence.count; begin += queries) {
        for (int head = 0; head < pool_.kv_heads; head += together) {
          pieces_.push_back({s, head, head + together, begin, std::min(begin + queries, sequence.count)});
        }
      }
    }
    partials_.heads = heads_;
    partials_.dim = pool_.dim;
    if (const size_t needed = partials * partials_.floats(); needed > partial_floats_) {
      partial_memory_.reset(floats(needed));
      partial_floats_ = needed;
    }
    partials_.data = partial_memory_.get();
    for (auto& scratch : scratch_) {
      if (scratch.memory) continue;
      const size_t vectors = size_t(queries) * group, dim = pool_.dim;
      scratch.memory.reset(floats(kPart * dim + vectors * (kPart + dim) + std::max<size_t>(vectors, heads_) * dim));
      float* tile = scratch.memory.get();
      float* scores = tile + kPart * dim;
      float* part = scores + vectors * kPart;
      scratch.attention = {tile, scores, part, part + vectors * dim};
    }
  }

  static int parts_of(const Sequence& sequence) { return (sequence.position + sequence.count + kPart - 1) / kPart; }

  int rows_of(int index) const { return index < select_ ? step_.tokens : step_.sampled; }

  void execute_all(int first, int last) {
    first_ = first;
    last_ = last;
    for (int i = first; i < last; ++i) {
      const Operation& op = operations_[i];
      const int rows = rows_of(i);
      const int share = std::max(1, rows / (4 * team_.threads()));
      const bool attends = op.kind == int32_t(Kind::kAttention);
      shares_[2 * i].open(attends ? static_cast<int>(pieces_.size()) : rows, attends ? 1 : share);
      if (attends) shares_[2 * i + 1].open(static_cast<int>(cuts_.size()), 1);
      if (op.kind == int32_t(Kind::kLinear)) shares_[2 * i + 1].open(panels_of(op), kTogether);
    }
    team_.run([](void* self, int thread) { static_cast<Program*>(self)->execute(thread); }, this);
  }

  static int panels_of(const Operation& op) { return (op.outputs + kPanel - 1) / kPanel; }

  void execute(int thread) {
    for (int i = first_; i < last_; ++i) {
      const Operation& op = operations_[i];
      const bool few = rows_of(i) <= kOwn;
      Shares& share = shares_[2 * i];
      switch (Kind(op.kind)) {
        case Kind::kEmbed: each(thread, share, [&](int row) { embed(op, row); }); break;
        case Kind::kAngles: each(thread, share, [&](int row) { turn(op, row); }); break;
        case Kind::kCache: each(thread, share, [&](int row) { cache(op, row); }); break;
        case Kind::kNorm: each(thread, share, [&](int row) { norm(op, row); }); break;
        case Kind::kSelect: each(thread, share, [&](int row) { select(op, row); }); break;
        case Kind::kGreedy: each(thread, share, [&](int row) { greedy(op, row); }); break;
        case Kind::kAttention:
          attention(op, thread, share, scratch_[thread].attention);
          if (cuts_.empty()) break;
          team_.barrier();
          each(thread, shares_[2 * i + 1], [&](int cut) { merge(op, cuts_[cut]); });
          break;
        case Kind::kLinear:
          if (prepares(op) && few) {
            for (int row = 0; row < rows_of(i); ++row) prepare(op, row, own_[thread]);
          } else if (prepares(op)) {
            each(thread, share, [&](int row) { prepare(op, row, prepared_); });
            team_.barrier();
          }
          linear(i, thread, few ? own_[thread] : prepared_);
      }
      team_.barrier();
    }
  }

  template <class One>
  static void each(int thread, Shares& share, One one) {
    int begin, end;
    while (share.take(thread, begin, end))
      for (int row = begin; row < end; ++row) one(row);
  }

  float* row(int index, int at) const { return registers_[index].get() + size_t(at) * widths_[index]; }

  int position(int token) const {
    const Sequence& sequence = step_.sequence[sequence_of_[token]];
    return sequence.position + token - sequence.first;
  }

  void embed(const Operation& op, int token) {
    float* to = row(op.target, token);
    read_row(WeightType(op.weight_type), op.weight, op.outputs, step_.token_ids[token], to);
    const float* learned = op.extra == nullptr ? nullptr : op.extra + size_t(position(token)) * op.outputs;
    for (int i = 0; i < op.outputs; ++i) to[i] = to[i] * op.scale + (learned == nullptr ? 0.0f : learned[i]);
  }

  // [cos, sin] of each pair. The angle is rounded to fp32 before its cosine is taken, as transformers does.
  void turn(const Operation& op, int token) {
    float* to = row(op.target, token);
    for (int i = 0; i < op.outputs / 2; ++i) {
      const float angle = static_cast<float>(position(token)) * op.extra[i];
      to[2 * i] = std::cos(angle) * op.scale;
      to[2 * i + 1] = std::sin(angle) * op.scale;
    }
  }

  // Norm and rotation of a token's queries and keys in place, then its keys and values to the pool.
  void cache(const Operation& op, int token) {
    const int dim = pool_.dim;
    float* heads = row(op.target, token);
    const Sequence& sequence = step_.sequence[sequence_of_[token]];
    const size_t slot = slot_of(sequence, position(token), pool_.block_size);
    for (int head = 0; head < op.heads + pool_.kv_heads; ++head) {
      float* at = heads + head * dim;
      const float* weight = head < op.heads ? op.norm_weight : op.extra;
      if (op.norm != 0) normalise(NormKind(op.norm), at, weight, nullptr, dim, op.epsilon, at);
      if (op.angles >= 0) rotate(at, row(op.angles, token), dim);
    }
    for (int head = 0; head < 2 * pool_.kv_heads; ++head) {
      const float* from = heads + (op.heads + head) * dim;
      write_head(pool_, op.layer, slot, head / pool_.kv_heads, head % pool_.kv_heads, from);
    }
  }

  void norm(const Operation& op, int at) {
    float* to = row(op.target, at);
    const float* from = row(op.source, at);
    if (op.accumulate == 0) {
      normalise(NormKind(op.norm), from, op.norm_weight, op.norm_bias, op.inputs, op.epsilon, to);
      return;
    }
    float* own = prepared_.normed.get() + size_t(at) * op.inputs;
    normalise(NormKind(op.norm), from, op.norm_weight, op.norm_bias, op.inputs, op.epsilon, own);
    for (int i = 0; i < op.inputs; ++i) to[i] += own[i];
  }

  void select(const Operation& op, int at) {
    std::memcpy(row(op.target, at), row(op.source, step_.sampled_at[at]), sizeof(float) * op.inputs);
  }

  void greedy(const Operation& op, int at) {
    const float* logits = row(op.source, at);
    __m256 most = _mm256_set1_ps(-INFINITY), sum = _mm256_setzero_ps();
    int i = 0;
    for (; i + 8 <= op.inputs; i += 8) {
      const __m256 x = _mm256_loadu_ps(logits + i);
      most = _mm256_max_ps(most, x);
      sum = _mm256_add_ps(sum, x);
    }
    float greatest = max8(most), total = sum8(sum);
    for (; i < op.inputs; ++i) {
      greatest = std::max(greatest, logits[i]);
      total += logits[i];
    }
    int token = -1;
    if (std::isfinite(total)) {
      for (token = 0; logits[token] != greatest;) ++token;
    }
    step_.greedy[at] = token;
  }

  bool prepares(const Operation& op) const { return op.norm != 0 || quantised(WeightType(op.weight_type)); }

  void prepare(const Operation& op, int at, Prepared& into) const {
    const float* from = row(op.source, at);
    if (op.norm != 0) {
      float* to = into.normed.get() + size_t(at) * op.inputs;
      normalise(NormKind(op.norm), from, op.norm_weight, op.norm_bias, op.inputs, op.epsilon, to);
      from = to;
    }
    const WeightType type = WeightType(op.weight_type);
    if (!quantised(type)) return;
    const int groups = groups_of(op);
    auto* codes = reinterpret_cast<uint8_t*>(into.codes.get()) + size_t(at) * groups * code_bytes(type);
    float* scales = into.scales.get() + size_t(at) * groups;
    float* sums = into.sums.get() + size_t(at) * groups;
    if (type == WeightType::kInt8) {
      quantise_row<WeightType::kInt8>(from, op.inputs, codes, scales, sums);
    } else {
      quantise_row<WeightType::kInt4>(from, op.inputs, codes, scales, sums);
    }
  }

  static int groups_of(const Operation& op) {
    const int group = group_inputs(WeightType(op.weight_type));
    return (op.inputs + group - 1) / group;
  }

  Inputs inputs(const Operation& op, const Prepared& prepared) const {
    Inputs in;
    in.rows = op.norm != 0 ? prepared.normed.get() : registers_[op.source].get();
    in.stride = op.norm != 0 ? op.inputs : widths_[op.source];
    const WeightType type = WeightType(op.weight_type);
    if (quantised(type)) {
      in.groups = groups_of(op);
      in.codes = reinterpret_cast<const uint8_t*>(prepared.codes.get());
      in.scales = prepared.scales.get();
      in.sums = prepared.sums.get();
    }
    return in;
  }

  void linear(int index, int thread, const Prepared& prepared) {
    const Operation& op = operations_[index];
    Shares& share = shares_[2 * index + 1];
    alignas(64) float sums[kTogether * kRows * kPanel];
    const Inputs in = inputs(op, prepared);
    const WeightType type = WeightType(op.weight_type);
    const size_t bytes = panel_bytes(type, op.inputs);
    int panel, end;
    while (share.take(thread, panel, end)) {
      const auto* weight = static_cast<const char*>(op.weight) + bytes * panel;
      const bool is_last = end == share.begin_of(thread + 1);
      const char* ahead = is_last ? first_weights(index + 1, thread) : weight + bytes * kTogether;
      for (int first = 0; first < rows_of(index); first += kRows) {
        const int count = std::min(kRows, rows_of(index) - first);
        multiply_panels(in, type, weight, end - panel, op.inputs, first, count, ahead, sums);
        for (int p = 0; p < end - panel; ++p) {
          for (int m = 0; m < count; ++m) {
            store(op, panel + p, sums + (p * count + m) * kPanel, row(op.target, first + m));
          }
        }
      }
    }
  }

  // The first weights of a thread's in the next linear operation from `index` on; behind the last, of the whole
  // program.
  const char* first_weights(int index, int thread) const {
    const int count = static_cast<int>(operations_.size());
    while (index < count && operations_[index].kind != int32_t(Kind::kLinear)) ++index;
    if (index == count) return first_weights(0, thread);
    const Operation& op = operations_[index];
    const int panel = Shares::begin_of(panels_of(op), thread, team_.threads());
    return static_cast<const char*>(op.weight) + panel_bytes(WeightType(op.weight_type), op.inputs) * panel;
  }

  // Bias, activation or gate, and the way into the target.
  void store(const Operation& op, int panel, const float* sums, float* target) const {
    __m256 low = _mm256_load_ps(sums), high = _mm256_load_ps(sums + 8);
    if (op.bias != nullptr) {
      low = _mm256_add_ps(low, _mm256_loadu_ps(op.bias + panel * kPanel));
      high = _mm256_add_ps(high, _mm256_loadu_ps(op.bias + panel * kPanel + 8));
    }
    const Activation activation = Activation(op.activation);
    if (op.gated != 0) {
      _mm256_storeu_ps(target + panel * 8, _mm256_mul_ps(activate8(activation, low), high));
      return;
    }
    low = activate8(activation, low);
    high = activate8(activation, high);
    if (op.softcap > 0) {
      const __m256 cap = _mm256_set1_ps(op.softcap);
      low = _mm256_mul_ps(tanh8(_mm256_div_ps(low, cap)), cap);
      high = _mm256_mul_ps(tanh8(_mm256_div_ps(high, cap)), cap);
    }
    float* to = target + panel * kPanel;
    if (panel * kPanel + kPanel > op.outputs) {
      alignas(32) float both[kPanel];
      _mm256_store_ps(both, low);
      _mm256_store_ps(both + 8, high);
      for (int i = 0; i < op.outputs - panel * kPanel; ++i) to[i] = both[i] + (op.accumulate != 0 ? to[i] : 0.0f);
      return;
    }
    if (op.accumulate != 0) {
      low = _mm256_add_ps(low, _mm256_loadu_ps(to));
      high = _mm256_add_ps(high, _mm256_loadu_ps(to + 8));
    }
    _mm256_storeu_ps(to, low);
    _mm256_storeu_ps(to + 8, high);
  }

  void attention(const Operation& op, int thread, Shares& share, AttentionScratch& scratch) {
    const Attention what{op.layer, op.heads, op.scale, op.softcap, op.window};
    int begin, end;
    while (share.take(thread, begin, end)) {
      const Piece& piece = pieces_[begin];
      attend(what, pool_, step_.sequence[piece.sequence], piece, registers_[op.source].get(), widths_[op.source],
             registers_[op.target].get(), widths_[op.target], partials_, scratch);
    }
  }

  void merge(const Operation& op, const Cut& cut) const {
    merge_partials(partials_, cut.partial, cut.parts, row(op.target, cut.token));
  }

  struct Scratch {
    Buffer memory;
    AttentionScratch attention{};
  };

  std::vector<Operation> operations_;
  int heads_ = 1;
  std::vector<int32_t> widths_;
  std::vector<Buffer> registers_;
  Prepared prepared_;
  std::vector<Prepared> own_;  // a thread's
  Team team_;
  std::vector<Shares> shares_;
  std::vector<int32_t> sequence_of_;
  std::vector<Piece> pieces_;
  std::vector<Cut> cuts_;
  Partials partials_;
  Buffer partial_memory_;
  size_t partial_floats_ = 0;
  std::vector<Scratch> scratch_;
  Step step_{};
  Pool pool_;
  int select_ = 0;  // index of the selection
  int first_ = 0, last_ = 0;  // what runs now
};

}  // namespace pagoda

#pragma GCC visibility push(default)
extern "C" {

int pagoda_supported() {
  __builtin_cpu_init();
#ifdef __AVX512VNNI__
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl") ||
      !__builtin_cpu_supports("avx512vnni")) {
    return 0;
  }
#endif
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

// What this is compiled for.
const char* pagoda_instructions() {
#ifdef __AVX512VNNI__
  return "AVX-512";
#else
  return "AVX2";
#endif
}

void* pagoda_program(const pagoda::Operation* operations, int count, const int32_t* widths, const int32_t* sampled,
                     int registers, int max_tokens, int max_sampled, int threads) {
  try {
    return new pagoda::Program(operations, count, widths, sampled, registers, max_tokens, max_sampled, threads);
  } catch (const std::exception&) {
    return nullptr;  // no memory, or no thread
  }
}

void pagoda_free(void* program) { delete static_cast<pagoda::Program*>(program); }

void pagoda_run(void* program, const pagoda::Step* step, const pagoda::Pool* pool, int first, int last) {
  static_cast<pagoda::Program*>(program)->run(*step, *pool, first, last);
}

// The tokens are those that the last step's `sampled_at` now holds.
void pagoda_finish(void* program, int sampled) { static_cast<pagoda::Program*>(program)->finish(sampled); }

float* pagoda_values(void* program, int index) { return static_cast<pagoda::Program*>(program)->values(index); }
}
#pragma GCC visibility pop

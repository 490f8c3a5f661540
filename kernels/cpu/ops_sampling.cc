// Logits to tokens: arg max, log-probabilities and sampling. Rows are split over threads.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/workspace.h"
#include "kernels/ops.h"

namespace somnus::cpu {
namespace {

constexpr int64_t kBuckets = kHistogramBuckets;
// 2048 buckets reach 32 below the maximum: e^-32 is below the last bit of any f32 sum.
constexpr float kBucketsPerUnit = 64;
constexpr float kMinTemperature = 1e-5f;  // below: greedy

bool Likelier(const ScoredToken& a, const ScoredToken& b) {
  return a.value > b.value || (a.value == b.value && a.id < b.id);
}

// The k likeliest of x, in order. k <= n.
void TopK(const float* x, int64_t n, int64_t k, ScoredToken* top) {
  int64_t size = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (size == k && !(x[i] > top[0].value)) continue;
    if (size == k) std::pop_heap(top, top + size--, Likelier);
    top[size++] = {std::isnan(x[i]) ? -std::numeric_limits<float>::infinity() : x[i],
                   static_cast<int32_t>(i)};
    std::push_heap(top, top + size, Likelier);
  }
  std::sort_heap(top, top + size, Likelier);
}

// The values in reach of sampling: x[i] >= floor. Narrowed by top-k, then by top-p.
struct Candidates {
  const KernelTable& kernels;
  float* x;
  int64_t n;
  float max;
  float floor;

  // Scratch.
  double* histogram;
  float* weights;
  ScoredToken* list;

  double total = 0;  // of the last FindBucket

  int64_t Bucket(float value) const {
    const float bucket = (max - value) * kBucketsPerUnit;
    return bucket < static_cast<float>(kBuckets - 1) ? static_cast<int64_t>(bucket) : kBuckets - 1;
  }

  // The bucket in which the running sum of `weight` over values in falling order reaches `goal`; *before is
  // the sum of all earlier buckets. The bucket's members are put into `list`; *size is their number.
  template <typename Weight, typename Reached>
  void FindBucket(const Weight& weight, const Reached& reached, double* before, int64_t* size) {
    std::fill_n(histogram, kBuckets, 0.0);
    for (int64_t i = 0; i < n; ++i) {
      if (x[i] >= floor) histogram[Bucket(x[i])] += weight(i);
    }
    total = 0;
    for (int64_t b = 0; b < kBuckets; ++b) total += histogram[b];
    int64_t bucket = 0;
    *before = 0;
    while (bucket < kBuckets - 1 && !reached(*before + histogram[bucket], total))
      *before += histogram[bucket++];
    *size = 0;
    for (int64_t i = 0; i < n; ++i) {
      if (x[i] >= floor && Bucket(x[i]) == bucket) list[(*size)++] = {x[i], static_cast<int32_t>(i)};
    }
  }

  // Keeps the k largest and all values equal to the k-th, as vLLM does.
  void KeepTopK(int64_t k) {
    double before;
    int64_t size;
    FindBucket([](int64_t) { return 1.0; }, [k](double sum, double) { return sum >= static_cast<double>(k); },
               &before, &size);
    const int64_t index = k - 1 - static_cast<int64_t>(before);
    if (index >= size) return;
    std::nth_element(list, list + index, list + size, Likelier);
    floor = std::max(floor, list[index].value);
  }

  // Keeps the shortest prefix, in falling order, whose probability reaches p: a value stays if the sum of the
  // values before is below p. Equal values come in the order of their ids.
  void KeepTopP(float p) {
    kernels.exp_minus(x, n, max, weights);
    double before;
    int64_t size;
    FindBucket([this](int64_t i) { return static_cast<double>(weights[i]); },
               [p](double sum, double total) { return sum >= p * total; }, &before, &size);
    std::sort(list, list + size, Likelier);
    const double goal = p * total;
    int64_t kept = 0;
    while (kept < size && (kept == 0 || before < goal)) before += weights[list[kept++].id];
    if (kept == 0) return;
    floor = std::max(floor, list[kept - 1].value);
    for (int64_t i = kept; i < size && list[i].value == floor; ++i) {
      x[list[i].id] = -std::numeric_limits<float>::infinity();
    }
  }
};

// The token of a row whose largest logit is `best`.
int32_t TokenOf(const ScoredToken& best) {
  if (std::isfinite(best.value)) return best.id;
  return best.value < 0 ? kNoTokenAllowed : kLogitsNotFinite;
}

int32_t SampleOne(const KernelTable& kernels, float* x, int64_t n, const SampleRow& row, char* scratch) {
  if (!(row.temperature >= kMinTemperature)) return TokenOf(kernels.arg_max(x, n));
  const float max = kernels.scale_logits(x, n, row.temperature);
  if (!std::isfinite(max)) return TokenOf({max, -1});
  Candidates candidates{.kernels = kernels,
                        .x = x,
                        .n = n,
                        .max = max,
                        .floor = -std::numeric_limits<float>::infinity(),
                        .histogram = reinterpret_cast<double*>(scratch),
                        .weights = reinterpret_cast<float*>(scratch + kBuckets * 8),
                        .list = reinterpret_cast<ScoredToken*>(scratch + kBuckets * 8 + RoundUp(n * 4, 64))};
  // vLLM's order: temperature, min-p, top-k, top-p.
  if (row.min_p > 0) candidates.floor = max + std::min(0.0f, std::log(row.min_p));
  if (row.top_k > 0 && row.top_k < n) candidates.KeepTopK(row.top_k);
  if (row.top_p < 1) candidates.KeepTopP(std::max(0.0f, row.top_p));
  // The largest value is always a candidate, so there is a candidate.
  return static_cast<int32_t>(
      kernels.gumbel_arg_max(x, nullptr, n, candidates.floor, row.seed, row.position));
}

}  // namespace

void ArgMax(Device& device, const TensorView& logits, int64_t id_offset, ScoredToken* best) {
  CpuDevice& cpu = AsCpu(device);
  cpu.ParallelFor(logits.rows, logits.rows * logits.cols / 4, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      best[r] = {-std::numeric_limits<float>::infinity(), -1};
      if (logits.cols > 0) best[r] = cpu.kernels().arg_max(logits.row<float>(r), logits.cols);
      if (best[r].id >= 0) best[r].id += static_cast<int32_t>(id_offset);
    }
  });
}

void LogProbs(Device& device, const TensorView& logits, const int32_t* ids, int64_t k, float* out_logprob,
              int32_t* out_rank, ScoredToken* out_top) {
  CpuDevice& cpu = AsCpu(device);
  const int64_t n = logits.cols;
  cpu.ParallelFor(logits.rows, logits.rows * n, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* x = logits.row<float>(r);
      double lse;
      int32_t larger;
      cpu.kernels().log_sum_exp(x, n, x[ids[r]], &lse, &larger);
      out_logprob[r] = static_cast<float>(x[ids[r]] - lse);
      out_rank[r] = larger + 1;
      if (k == 0) continue;
      ScoredToken* top = out_top + r * k;
      TopK(x, n, std::min(k, n), top);
      for (int64_t i = 0; i < k; ++i) {
        // A vocabulary smaller than k: the rest repeats the last.
        top[i] = i < n ? ScoredToken{static_cast<float>(top[i].value - lse), top[i].id} : top[n - 1];
      }
    }
  });
}

void Sample(Device& device, const TensorView& logits, const SampleRow* rows, int32_t* tokens) {
  CpuDevice& cpu = AsCpu(device);
  const int64_t scratch_bytes = SamplingBytes(logits.cols);
  cpu.OnThreads(logits.rows * logits.cols, [&](int thread, const Partition& partition) {
    const Range part = partition.PartOf(logits.rows, thread);
    for (int64_t r = part.begin; r < part.end; ++r) {
      tokens[r] = SampleOne(cpu.kernels(), logits.row<float>(r), logits.cols, rows[r],
                            cpu.workspace() + thread * scratch_bytes);
    }
  });
}

int64_t OpsWorkspaceBytes(const Device& device, const OpsLimits& limits) {
  const int64_t threads = AsCpu(device).num_threads();
  const int64_t linear = limits.max_tokens * LinearRowBytes(limits.max_k);
  const int64_t experts =
      ExpertTableBytes(limits.max_experts) + limits.max_expert_rows * LinearRowBytes(limits.max_k);
  const int64_t attention = AttentionHeadBytes(2 * limits.num_heads) +
                            threads * AttentionScratchBytes(limits.head_dim) + AttentionCountBytes(threads) +
                            AllPartialBytes(threads, limits);
  const int64_t sampling = threads * SamplingBytes(limits.vocab_size);
  return RoundUp(std::max({linear, experts, attention, sampling}), 64);
}

}  // namespace somnus::cpu

#include "tools/simulator/forked_engine.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/block_manager/block_manager.h"

namespace somnus {
namespace {

// Of log-probabilities from one continuation of a beam to the next: the likeliest one has two thirds on
// average.
constexpr double kMeanGap = 2;

struct Group {
  LoadRequest request;
  std::vector<int64_t> sequences;  // that have tables
  int64_t to_prefill = 0;          // tokens, of the prompt and, after a preemption, of all outputs
  int32_t outputs = 0;             // of each sequence, known
  std::optional<BeamChoice> beams;

  int64_t length() const { return request.input + outputs; }
};

class ForkedEngine : public SimulatedEngine {
 public:
  explicit ForkedEngine(const EngineOptions& options)
      : options_(options), zeros_(options.max_model_len, 0), blocks_(ToBlockOptions(options)) {}

  absl::Status Add(const LoadRequest& request) override {
    const int64_t longest = request.input + request.output;
    if (longest > options_.max_model_len || BlocksOf(request.input, longest) > blocks_.total_blocks())
      return absl::InvalidArgumentError(absl::StrCat("request ", request.id, " can never fit"));
    Group group;
    group.request = request;
    const uint64_t seed = options_.seed * 0x9E3779B97F4A7C15u + static_cast<uint64_t>(request.id);
    if (options_.beams > 0) group.beams.emplace(options_.beams, seed);
    waiting_.push_back(std::move(group));
    return absl::OkStatus();
  }

  std::optional<StepLoad> BeginStep() override {
    StepLoad load;
    const bool preempted = Decode(&load);
    int64_t budget = options_.max_num_batched_tokens - load.decode_sequences;
    for (Group& group : running_) Prefill(&group, &budget, &load);
    while (!preempted && budget > 0 && !waiting_.empty() && Admit())
      Prefill(&running_.back(), &budget, &load);
    if (load.empty()) return std::nullopt;
    return load;
  }

  void EndStep(StepResult* result) override {
    std::erase_if(running_, [&](Group& group) {
      if (group.to_prefill > 0) return false;
      if (group.outputs == 0) result->first_tokens.push_back(group.request.id);
      if (++group.outputs == group.request.output) {
        for (const int64_t sequence : group.sequences) blocks_.Free(sequence);
        result->ended.push_back(group.request.id);
        return true;
      }
      while (group.sequences.size() < sequences()) Fork(&group, group.sequences.front());
      if (group.beams.has_value()) ChooseBeams(&group);
      return false;
    });
  }

  KvUse kv_use() const override {
    const int64_t size = options_.block_size;
    KvUse use;
    use.total = int64_t{blocks_.total_blocks()} * size;
    use.held_slots = int64_t{blocks_.used_blocks()} * size;
    for (const Group& group : running_) {
      const auto count = static_cast<int64_t>(group.sequences.size());
      const int64_t table = blocks_.BlocksFor(group.length()) * size;
      use.unshared_slots += count * table;
      use.rounding += count * (table - group.length()) + group.to_prefill;
    }
    use.live = use.held_slots - use.rounding;
    return use;
  }

  int64_t num_running() const override { return static_cast<int64_t>(running_.size()); }
  int64_t num_preemptions() const override { return num_preemptions_; }

 private:
  static BlockManagerOptions ToBlockOptions(const EngineOptions& options) {
    BlockManagerOptions blocks;
    blocks.num_blocks = static_cast<int32_t>(options.kv_slots / options.block_size) + 1;
    blocks.block_size = options.block_size;
    blocks.enable_prefix_caching = false;
    return blocks;
  }

  size_t sequences() const { return static_cast<size_t>(options_.num_sequences()); }

  // How many blocks a group takes whose sequences have `length` tokens and share the prompt's full blocks.
  int64_t BlocksOf(int64_t input, int64_t length) const {
    if (length == input) return blocks_.BlocksFor(input);
    const int64_t shared = input / options_.block_size;
    return shared + options_.num_sequences() * (blocks_.BlocksFor(length) - shared);
  }

  // Returns whether it preempted a group.
  bool Decode(StepLoad* load) {
    bool preempted = false;
    for (size_t i = 0; i < running_.size(); ++i) {
      if (running_[i].to_prefill > 0) continue;
      while (!GrowGroup(&running_[i], load)) {
        preempted = true;
        PreemptLast();
        if (i == running_.size()) return true;  // it was the last one itself
      }
      const auto count = static_cast<int64_t>(running_[i].sequences.size());
      load->decode_sequences += count;
      load->kv_tokens += count * running_[i].length();
    }
    return preempted;
  }

  // Makes room for the last token of each sequence. False when blocks run out; it may be called again.
  bool GrowGroup(Group* group, StepLoad* load) {
    std::vector<int32_t> new_blocks;
    std::vector<BlockCopyOp> copies;
    bool has_room = true;
    for (const int64_t sequence : group->sequences) {
      has_room = has_room && blocks_.Grow(sequence, group->length(), &new_blocks) &&
                 blocks_.MakeWritable(sequence, group->length() - 1, &copies);
    }
    load->kv_tokens += 2 * options_.block_size * static_cast<int64_t>(copies.size());  // read and written
    return has_room;
  }

  void PreemptLast() {
    Group group = std::move(running_.back());
    running_.pop_back();
    for (const int64_t sequence : group.sequences) blocks_.Free(sequence);
    group.sequences.clear();
    waiting_.push_front(std::move(group));
    ++num_preemptions_;
  }

  bool Admit() {
    Group& group = waiting_.front();
    const bool nothing_runs = running_.empty();
    if (!nothing_runs && (running_.size() + 1) * sequences() > static_cast<size_t>(options_.max_num_seqs))
      return false;
    const int64_t needed = BlocksOf(group.request.input, group.length());
    if (blocks_.CanAllocate(needed * options_.block_size, nothing_runs) != AllocStatus::kOk) return false;
    const int64_t first = next_sequence_++;
    const auto prompt = absl::MakeConstSpan(zeros_).first(static_cast<size_t>(group.request.input));
    blocks_.Allocate(first, prompt, "", /*use_cache=*/false, /*ignore_watermark=*/true);
    group.sequences.push_back(first);
    group.to_prefill = group.request.input;
    if (group.outputs >
        0) {  // it was preempted: what its sequences shared of their outputs is shared no more
      group.to_prefill += options_.num_sequences() * int64_t{group.outputs};
      while (group.sequences.size() < sequences()) Fork(&group, first);
      std::vector<int32_t> new_blocks;
      std::vector<BlockCopyOp> copies;
      for (const int64_t sequence : group.sequences) {
        blocks_.Grow(sequence, group.length(), &new_blocks);
        blocks_.MakeWritable(sequence, group.request.input, &copies);
      }
    }
    running_.push_back(std::move(group));
    waiting_.pop_front();
    return true;
  }

  void Prefill(Group* group, int64_t* budget, StepLoad* load) {
    const int64_t chunk = std::min(group->to_prefill, *budget);
    if (chunk == 0) return;
    group->to_prefill -= chunk;
    *budget -= chunk;
    load->prefill_tokens += chunk;
    load->kv_tokens += group->length() - std::min(group->length(), group->to_prefill);
  }

  void Fork(Group* group, int64_t parent) {
    const int64_t child = next_sequence_++;
    blocks_.Fork(parent, child);
    group->sequences.push_back(child);
  }

  void ChooseBeams(Group* group) {
    const std::vector<int64_t> old = std::move(group->sequences);
    group->sequences.clear();
    const std::vector<int32_t> parents = group->beams->Next();
    for (size_t i = 0; i < old.size(); ++i) {
      const auto children = std::count(parents.begin(), parents.end(), static_cast<int32_t>(i));
      if (children == 0) {
        blocks_.Free(old[i]);
        continue;
      }
      group->sequences.push_back(old[i]);
      for (int64_t child = 1; child < children; ++child) Fork(group, old[i]);
    }
  }

  const EngineOptions options_;
  const std::vector<int32_t> zeros_;  // tokens, which do not matter without a prefix cache
  BlockManager blocks_;
  std::deque<Group> waiting_;
  std::vector<Group> running_;  // in the order of admission
  int64_t next_sequence_ = 1;
  int64_t num_preemptions_ = 0;
};

}  // namespace

std::vector<int32_t> BeamChoice::Next() {
  const auto count = static_cast<int32_t>(scores_.size());
  std::vector<std::tuple<double, int32_t>> candidates;  // score, negated, and parent
  for (int32_t beam = 0; beam < count; ++beam) {
    const double gap = random_.Exponential(kMeanGap);
    const double best = std::log1p(-std::exp(-gap));
    for (int32_t rank = 0; rank < count; ++rank)
      candidates.emplace_back(-(scores_[beam] + best - gap * rank), beam);
  }
  std::partial_sort(candidates.begin(), candidates.begin() + count, candidates.end());
  candidates.resize(count);
  std::sort(candidates.begin(), candidates.end(),
            [](const auto& a, const auto& b) { return std::get<1>(a) < std::get<1>(b); });
  std::vector<int32_t> parents;
  for (int32_t i = 0; i < count; ++i) {
    scores_[i] = -std::get<0>(candidates[i]);
    parents.push_back(std::get<1>(candidates[i]));
  }
  return parents;
}

std::unique_ptr<SimulatedEngine> MakeForkedEngine(const EngineOptions& options) {
  return std::make_unique<ForkedEngine>(options);
}

}  // namespace somnus

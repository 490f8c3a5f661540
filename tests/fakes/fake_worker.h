#pragma once
// A worker whose "model" is a hash: the next token is a function of all tokens before it, read through the
// block table from a simulated KV cache. A block reused too early, a wrong prefix hit or a lost token changes
// every later token, so tests compare exact tokens with ReferenceTokens. Every rule of proto/worker.proto
// that a step breaks is an error. Not thread safe.
//
// The host tier takes one byte for each block that a step has swapped out to.
//
// Not-a-number is a scripted state that every later state of the prefix inherits, also through the cache; a
// sequence that would sample from such a state has a slot error. A sequence with a negative temperature is
// refused: the sequence has a slot error in every step, and nothing is written to the cache.
//
// Each stage of a pipeline is a fake of its own, with its own cache. The first stage reads the tokens. Each
// further stage takes the tokens from the stage before, and compares the state before the token in its own
// cache with what the stage before has computed: a wrong block of any stage changes every later token. Only
// the last stage samples, so the coordinator has to name sampled tokens to the first stage.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/worker.pb.h"

namespace somnus {

struct FakeWorkerOptions {
  int32_t num_blocks = 64;  // counts the null block
  int32_t block_size = 4;
  int32_t max_num_seqs = 8;
  int32_t max_num_batched_tokens = 1 << 20;
  int32_t vocab_size = 1000;
  int32_t num_host_blocks = 1 << 16;  // for swaps: the host has no memory for further blocks
  int32_t nan_token = -1;             // the state after this token is not a number
  // For the draft model, which expects the model's sample, except at every wrong_period-th position (0: no
  // exception).
  int32_t max_proposals = 0;
  int32_t wrong_period = 0;
  // Each query attends this many tokens, with its own: the cache must have them all, and blocks before may be
  // the null block. 0: the query attends the token before it, and there are no null blocks.
  int32_t window = 0;
};

// A stage's result for a token of a step, which the next stage goes on from.
struct FakeHidden {
  int64_t token = 0;
  uint64_t state = 0;  // after the token
};
using FakeStream = std::vector<FakeHidden>;

class FakeWorker {
 public:
  explicit FakeWorker(const FakeWorkerOptions& options)
      : options_(options),
        num_blocks_(options.num_blocks),
        cache_(static_cast<size_t>(options.num_blocks) * options.block_size, 0) {}

  absl::StatusOr<v1::StepReply> Execute(const v1::StepRequest& request);
  // As a stage of a pipeline. `received` is what the stage before has computed for all tokens of the step, in
  // order, and is empty in the first stage; `sent` becomes this stage's.
  struct Place {
    bool first = true, last = true;
  };
  absl::StatusOr<v1::StepReply> ExecuteStage(const v1::StepRequest& request, const Place& place,
                                             FakeStream received, FakeStream* sent);
  // Forgets the cache's contents. An error when a slot is still in use.
  absl::Status Sleep();
  // Copies block first of a pair to block second of a host tier, and back; only `swapped` stays of the blocks
  // that steps have swapped out. An error of CopyFromHost when `blocks` are not the pairs of the last
  // CopyToHost.
  using BlockPairs = std::vector<std::pair<int32_t, int32_t>>;
  void CopyToHost(const BlockPairs& blocks, const std::vector<int32_t>& swapped = {});
  absl::Status CopyFromHost(const BlockPairs& blocks);

  // From now on the host has no memory for blocks that steps swap out; or has memory again.
  void RefuseSwaps(bool refuses, absl::StatusCode code = absl::StatusCode::kResourceExhausted) {
    refuses_swaps_ = refuses;
    refusal_ = code;
  }
  int64_t num_swapped_out() const { return num_swapped_out_; }
  int64_t num_swapped_in() const { return num_swapped_in_; }

  // From now on only the first `num_blocks` can be used; the contents of all further blocks are lost. An
  // error when a slot has such a block.
  absl::Status Resize(int32_t num_blocks);

  // A block's contents.
  std::vector<uint64_t> Block(int32_t id) const;
  void SetBlock(int32_t id, const std::vector<uint64_t>& contents);

  // The model computes with other weights from now on; 0: the initial weights.
  void SetWeights(uint64_t weights) { weights_ = weights; }

  // Becomes a new process, after the death of the old process: no slot is in use, and the cache holds values
  // that no sequence has. The first step may have any id.
  void Replace();
  // Gives up the batch, as a worker does at a Fence: no slot is in use, and the next step may have any id.
  // The cache stays.
  void DropBatch();

  // Step `step_id` will compute not-a-numbers for `slot`.
  void MakeNan(int64_t step_id, int32_t slot) { nan_steps_[step_id] = slot; }

  size_t num_slots_in_use() const { return slots_.size(); }
  int64_t num_computed_tokens() const { return num_computed_tokens_; }
  int64_t num_draft_tokens() const { return num_draft_tokens_; }
  int64_t num_proposals() const { return num_proposals_; }

  // Returns the `count` tokens that a correct engine generates after `tokens`: greedily, and without any
  // stop.
  static std::vector<int32_t> ReferenceTokens(std::vector<int32_t> tokens, int32_t count,
                                              int32_t vocab_size = 1000, uint64_t weights = 0);
  // Returns the log-probabilities of the continuations of `tokens`: of the next token, then of the `count`
  // likeliest.
  static v1::StepLogprobs ReferenceCandidates(const std::vector<int32_t>& tokens, int32_t count,
                                              int32_t vocab_size = 1000);
  // Returns the log-probability that the fake gives to token `position` of `tokens`.
  static float ReferenceLogprob(const std::vector<int32_t>& tokens, int32_t position);
  // Returns the vector that a correct engine gives for `tokens`: a number of the states that count, and how
  // many states count.
  static std::vector<float> ReferencePooled(const std::vector<int32_t>& tokens, v1::StepPooling pooling);

 private:
  struct Slot {
    std::vector<int32_t> tokens;
    int64_t num_prompt = 0;
    int64_t num_computed = 0;
    std::vector<int32_t> blocks;
    int32_t num_drafts = 0;  // of the last tokens: guesses
    v1::StepSampling sampling;
    v1::StepPooling pooling = v1::STEP_POOLING_NONE;
    double pooled = 0;       // the sum of the states that count
    int64_t num_pooled = 0;  // the number of such states
    bool pooled_nan = false;
  };

  absl::Status Swap(const v1::StepRequest& request, v1::StepReply* reply);
  absl::Status Branch(const v1::StepRequest& request);
  // Puts the tokens that the coordinator names in the place of the slot's.
  absl::Status ReplaceTokens(const v1::ScheduledSequence& scheduled, Slot* slot) const;
  // Samples at the tokens of a draft, and at the token before the draft.
  void Check(const v1::ScheduledSequence& scheduled, v1::StepReply* reply);
  // Guesses behind the slot's samples of this step, which are the reply's tokens from `first_token` on. Where
  // a draft model would write its keys and values, the cache's contents are lost.
  absl::Status Propose(const v1::ScheduledSequence& scheduled, int first_token, v1::StepReply* reply);
  absl::Status AddSequence(const v1::NewSequence& message, const v1::StepRequest& request);
  absl::Status CheckBlocks(const Slot& slot) const;
  // The cache has the tokens that the query at `position` attends.
  absl::Status CheckWindow(const Slot& slot, int64_t position) const;
  bool IsUnseen(int64_t block, int64_t position) const {
    return options_.window > 0 && (block + 1) * options_.block_size <= position + 1 - options_.window;
  }
  absl::Status Run(const v1::ScheduledSequence& scheduled, v1::StepReply* reply);
  // The state after the slot's token at `position`, where `before` is the state before.
  absl::StatusOr<uint64_t> Compute(int32_t slot, int64_t position, uint64_t before);
  // The model's choice, or the next id, cyclically, that the slot's mask allows.
  int32_t ChooseToken(int32_t slot, uint64_t state);
  // Adds the slot's next token, or an error, to the reply, and to the slot's tokens.
  void Sample(int32_t slot, uint64_t state, v1::StepReply* reply);
  absl::Status Fork(const v1::SequenceFork& fork, const std::set<int32_t>& scheduled, v1::StepReply* reply);
  // Adds the state of a token of a slot that pools; behind the last one, the vector or an error to the reply.
  void Pool(int32_t slot, int64_t position, uint64_t state, v1::StepReply* reply);
  uint64_t NextState(uint64_t before, int32_t slot, int32_t token) const;
  size_t CacheIndex(const Slot& slot, int64_t position) const;

  const FakeWorkerOptions options_;
  int32_t num_blocks_;                                // that can be used
  std::vector<uint64_t> cache_;                       // one hash of the whole prefix per token
  BlockPairs kept_;                                   // the pairs of the last copy
  std::map<int32_t, std::vector<uint64_t>> host_;     // by host block
  std::map<int32_t, std::vector<uint64_t>> swapped_;  // by host block, of steps
  bool refuses_swaps_ = false;
  absl::StatusCode refusal_ = absl::StatusCode::kResourceExhausted;
  int64_t num_swapped_out_ = 0, num_swapped_in_ = 0;
  std::map<int32_t, Slot> slots_;
  std::map<int32_t, std::string> masks_;  // of the step, by slot: of the tokens that are still to be sampled
  std::map<int64_t, int32_t> nan_steps_;
  uint64_t weights_ = 0;  // the state before the first token
  Place place_;
  FakeStream received_, sent_;  // of the step
  int64_t last_step_id_ = 0;
  int64_t num_computed_tokens_ = 0;
  int64_t num_draft_tokens_ = 0;
  int64_t num_proposals_ = 0;
};

}  // namespace somnus

#include "tools/simulator/contiguous_engine.h"

#include <algorithm>
#include <bit>
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "tools/simulator/buddy_allocator.h"

namespace somnus {
namespace {

absl::Status CheckLength(const EngineOptions& options, const LoadRequest& request) {
  if (request.input + request.output <= options.max_model_len) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("request ", request.id, " is longer than the model's ", options.max_model_len, " tokens"));
}

class OrcaEngine : public SimulatedEngine {
 public:
  OrcaEngine(const EngineOptions& options, Reservation reservation)
      : options_(options), reservation_(reservation), memory_(options.kv_slots) {}

  absl::Status Add(const LoadRequest& request) override {
    if (absl::Status status = CheckLength(options_, request); !status.ok()) return status;
    BuddyAllocator empty(options_.kv_slots);
    for (int i = 0; i < options_.num_sequences(); ++i) {
      if (!empty.Allocate(ReservedSlots(reservation_, request, options_.max_model_len)).has_value()) {
        return absl::InvalidArgumentError(
            absl::StrCat("request ", request.id, " does not fit into the memory"));
      }
    }
    waiting_.push_back(request);
    return absl::OkStatus();
  }

  std::optional<StepLoad> BeginStep() override {
    const int64_t sequences = options_.num_sequences();
    StepLoad load;
    for (Running& running : running_) {
      ++running.computed;
      load.decode_sequences += sequences;
      load.kv_tokens += sequences * running.computed;
    }
    while (!waiting_.empty() && Admit(&load)) waiting_.pop_front();
    if (load.empty()) return std::nullopt;
    return load;
  }

  void EndStep(StepResult* result) override {
    std::erase_if(running_, [&](Running& running) {
      if (running.outputs++ == 0) result->first_tokens.push_back(running.request.id);
      if (running.outputs < running.request.output) return false;
      for (const BuddyAllocator::Piece& piece : running.pieces) memory_.Free(piece);
      result->ended.push_back(running.request.id);
      return true;
    });
  }

  KvUse kv_use() const override {
    KvUse use;
    use.total = options_.kv_slots;
    for (const Running& running : running_) {
      const int64_t length = running.request.input + running.request.output;
      for (const BuddyAllocator::Piece& piece : running.pieces) {
        use.live += running.computed;
        use.future += length - running.computed;
        use.surplus += running.reserved - length;
        use.rounding += piece.size() - running.reserved;
      }
    }
    use.held_slots = use.unshared_slots = use.reserved();
    return use;
  }

  int64_t num_running() const override { return static_cast<int64_t>(running_.size()); }

 private:
  struct Running {
    LoadRequest request;
    int64_t reserved = 0;  // of each piece, asked for
    std::vector<BuddyAllocator::Piece> pieces;
    int64_t computed = 0;
    int32_t outputs = 0;
  };

  bool Admit(StepLoad* load) {
    const LoadRequest& request = waiting_.front();
    const int64_t sequences = options_.num_sequences();
    if ((num_running() + 1) * sequences > std::max<int64_t>(options_.max_num_seqs, sequences)) return false;
    if (load->prefill_tokens > 0 && load->prefill_tokens + request.input > options_.max_num_batched_tokens)
      return false;
    Running running;
    running.request = request;
    running.reserved = ReservedSlots(reservation_, request, options_.max_model_len);
    for (int64_t i = 0; i < sequences; ++i) {
      const std::optional<BuddyAllocator::Piece> piece = memory_.Allocate(running.reserved);
      if (!piece.has_value()) {
        for (const BuddyAllocator::Piece& taken : running.pieces) memory_.Free(taken);
        return false;
      }
      running.pieces.push_back(*piece);
    }
    running.computed = request.input;
    load->prefill_tokens += request.input;
    load->kv_tokens += request.input;
    running_.push_back(std::move(running));
    return true;
  }

  const EngineOptions options_;
  const Reservation reservation_;
  BuddyAllocator memory_;
  std::deque<LoadRequest> waiting_;
  std::vector<Running> running_;
};

class RequestBatchEngine : public SimulatedEngine {
 public:
  explicit RequestBatchEngine(const EngineOptions& options)
      : options_(options),
        sequences_(options.num_sequences()),
        most_(std::min<int64_t>(options.max_num_seqs, options.kv_slots / options.max_model_len) /
              sequences_) {}

  absl::Status Add(const LoadRequest& request) override {
    if (absl::Status status = CheckLength(options_, request); !status.ok()) return status;
    if (most_ == 0) return absl::InvalidArgumentError("the memory has no room for a batch of one request");
    waiting_.push_back(request);
    return absl::OkStatus();
  }

  std::optional<StepLoad> BeginStep() override {
    StepLoad load;
    if (batch_.empty()) {
      while (!waiting_.empty() && num_running() < most_) {
        batch_.push_back(waiting_.front());
        waiting_.pop_front();
      }
      if (batch_.empty()) return std::nullopt;
      outputs_ = 0;
      padded_ = 0;
      for (const LoadRequest& request : batch_) padded_ = std::max<int64_t>(padded_, request.input);
      load.prefill_tokens = num_running() * padded_;
      load.kv_tokens = num_running() * padded_;
      return load;
    }
    load.decode_sequences = num_running() * sequences_;
    load.kv_tokens = load.decode_sequences * (padded_ + outputs_);
    return load;
  }

  void EndStep(StepResult* result) override {
    int32_t longest = 0;
    for (const LoadRequest& request : batch_) {
      longest = std::max(longest, request.output);
      if (outputs_ == 0) result->first_tokens.push_back(request.id);
    }
    if (++outputs_ < longest) return;
    for (const LoadRequest& request : batch_) result->ended.push_back(request.id);
    batch_.clear();
  }

  KvUse kv_use() const override {
    KvUse use;
    use.total = options_.kv_slots;
    for (const LoadRequest& request : batch_) {
      const int64_t live = request.input + std::min<int64_t>(outputs_, request.output);
      const int64_t length = request.input + request.output;
      use.live += sequences_ * live;
      use.future += sequences_ * (length - live);
      use.surplus += sequences_ * (options_.max_model_len - length);
    }
    use.held_slots = use.unshared_slots = use.reserved();
    return use;
  }

  int64_t num_running() const override { return static_cast<int64_t>(batch_.size()); }

 private:
  const EngineOptions options_;
  const int64_t sequences_;  // of each request
  const int64_t most_;       // requests of a batch
  std::deque<LoadRequest> waiting_;
  std::vector<LoadRequest> batch_;
  int64_t padded_ = 0;  // tokens of each prompt of the batch
  int32_t outputs_ = 0;
};

}  // namespace

int64_t ReservedSlots(Reservation reservation, const LoadRequest& request, int32_t max_model_len) {
  switch (reservation) {
    case Reservation::kOracle:
      return request.input + request.output;
    case Reservation::kPow2:
      return std::min<int64_t>(max_model_len,
                               request.input + int64_t{std::bit_ceil(static_cast<uint32_t>(request.output))});
    case Reservation::kMax:
      return max_model_len;
  }
  return max_model_len;
}

std::unique_ptr<SimulatedEngine> MakeOrcaEngine(const EngineOptions& options, Reservation reservation) {
  return std::make_unique<OrcaEngine>(options, reservation);
}

std::unique_ptr<SimulatedEngine> MakeRequestBatchEngine(const EngineOptions& options) {
  return std::make_unique<RequestBatchEngine>(options);
}

}  // namespace somnus

#include "worker/runner/rank_adapters.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace somnus {

RankAdapters::RankAdapters(const ModelConfig& config, const ModelShards& shards,
                           const ModelRunnerOptions& options, Device* device)
    : reader_(std::make_shared<AdapterReader>(config, shards, options)),
      layers_(shards.layers),
      dtype_(options.dtype),
      max_adapters_(options.max_adapters),
      max_rank_(options.max_lora_rank),
      max_tokens_(options.max_num_batched_tokens),
      device_(*device),
      adapters_(static_cast<size_t>(options.max_adapters)),
      places_(options.max_adapters, options.max_loras) {}

void RankAdapters::Carve(Carver* carver) {
  const int64_t num_linears = layers_.size() * kNumLoraTargets;
  const int64_t rows = int64_t{places_.num_places()} * max_rank_;
  ranks_ = carver->Take<int32_t>(num_linears * places_.num_places());
  weights_.hidden = carver->TakeMatrix(DataType::kF32, max_tokens_, max_rank_);
  weights_.linears.clear();
  for (int64_t i = 0; i < num_linears; ++i) {
    const AdapterReader::Part& part = reader_->part(static_cast<int>(i % kNumLoraTargets));
    LoraWeights linear = {
        .dtype = dtype_, .max_rank = max_rank_, .n = part.rows.size(), .k = part.cols.size()};
    linear.a = carver->TakeMatrix(dtype_, rows, linear.k).data;
    linear.b = carver->TakeMatrix(dtype_, rows, linear.n).data;
    linear.ranks = ranks_ + i * places_.num_places();
    weights_.linears.push_back(linear);
  }
}

void RankAdapters::EmptyPlaces() {
  host_ranks_.assign(weights_.linears.size() * static_cast<size_t>(places_.num_places()), 0);
  places_.Clear();
}

absl::Status RankAdapters::Place(const BatchState& state) {
  std::vector<int32_t> step, held;
  for (const ScheduledSlot& scheduled : state.scheduled()) {
    const int32_t slot = state.slot(scheduled.slot).adapter_slot;
    if (slot > 0) step.push_back(slot);
  }
  for (int32_t i = 0; i < state.limits().max_num_seqs; ++i) {
    if (state.slot(i).in_use && state.slot(i).adapter_slot > 0) held.push_back(state.slot(i).adapter_slot);
  }
  for (const int32_t slot : step) {
    if (adapters_[slot - 1] == nullptr)
      return absl::InvalidArgumentError(absl::StrCat("there is no adapter in slot ", slot));
  }
  ASSIGN_OR_RETURN(const std::vector<AdapterPlaces::Move> moves, places_.Place(step, held));
  if (moves.empty()) return absl::OkStatus();
  for (const AdapterPlaces::Move& move : moves) Write(move);
  device_.CopyToDevice(ranks_, host_ranks_.data(),
                       static_cast<int64_t>(host_ranks_.size() * sizeof(int32_t)));
  const absl::Status copied = device_.Synchronize();
  if (!copied.ok()) places_.Clear();
  return copied;
}

void RankAdapters::Write(const AdapterPlaces::Move& move) {
  const auto copy = [this](const void* to, int64_t offset, const std::vector<uint8_t>& from) {
    // The memory is ours to write: Carve took the memory for the places.
    device_.CopyToDevice(static_cast<char*>(const_cast<void*>(to)) + offset, from.data(),
                         static_cast<int64_t>(from.size()));
  };
  const int64_t first_row = int64_t{move.place} * max_rank_;
  for (size_t i = 0; i < weights_.linears.size(); ++i) {
    const HostAdapter::Matrices& matrices = adapters_[move.slot - 1]->linears[i];
    const LoraWeights& linear = weights_.linears[i];
    copy(linear.a, first_row * linear.k * SizeOf(dtype_), matrices.a);
    copy(linear.b, first_row * linear.n * SizeOf(dtype_), matrices.b);
    host_ranks_[i * static_cast<size_t>(places_.num_places()) + static_cast<size_t>(move.place)] =
        matrices.rank;
  }
}

void RankAdapters::AddRead(std::vector<std::shared_ptr<const HostAdapter>> adapters) {
  read_.clear();
  for (std::shared_ptr<const HostAdapter>& adapter : adapters) read_[adapter->id] = std::move(adapter);
}

absl::Status RankAdapters::Set(absl::Span<const v1::WorkerAdapter> adapters) {
  const auto read = std::exchange(read_, {});
  RETURN_IF_ERROR(Check(adapters));
  std::vector<std::shared_ptr<const HostAdapter>> next(adapters_.size());
  for (const v1::WorkerAdapter& adapter : adapters) {
    const size_t index = static_cast<size_t>(adapter.slot() - 1);
    if (adapters_[index] != nullptr && adapters_[index]->id == adapter.id()) {
      next[index] = adapters_[index];
    } else if (const auto found = read.find(adapter.id()); found != read.end()) {
      next[index] = found->second;
    } else {
      ASSIGN_OR_RETURN(next[index], reader_->Read(adapter, [] { return false; }));
    }
  }
  for (size_t index = 0; index < next.size(); ++index) {
    if (next[index] != adapters_[index]) places_.Drop(static_cast<int32_t>(index) + 1);
  }
  adapters_ = std::move(next);
  return absl::OkStatus();
}

absl::Status RankAdapters::Check(absl::Span<const v1::WorkerAdapter> adapters) const {
  std::vector<bool> taken(adapters_.size());
  for (const v1::WorkerAdapter& adapter : adapters) {
    if (adapter.slot() < 1 || adapter.slot() > max_adapters_) {
      return absl::InvalidArgumentError(
          absl::StrCat("adapters: slot ", adapter.slot(), " is not from 1 to ", max_adapters_));
    }
    if (taken[adapter.slot() - 1])
      return absl::InvalidArgumentError(absl::StrCat("adapters: slot ", adapter.slot(), " is named twice"));
    taken[adapter.slot() - 1] = true;
  }
  return absl::OkStatus();
}

std::vector<bool> RankAdapters::loaded() const {
  std::vector<bool> loaded;
  for (const auto& adapter : adapters_) loaded.push_back(adapter != nullptr);
  return loaded;
}

std::map<uint64_t, std::string> RankAdapters::Fingerprints() const {
  std::map<uint64_t, std::string> fingerprints;
  for (const auto& adapter : adapters_) {
    if (adapter != nullptr) fingerprints.emplace(adapter->id, adapter->fingerprint);
  }
  return fingerprints;
}

int64_t RankAdapters::adapter_host_bytes() const {
  size_t bytes = 0;
  const auto add = [&bytes](const HostAdapter& adapter) {
    for (const HostAdapter::Matrices& matrices : adapter.linears)
      bytes += matrices.a.size() + matrices.b.size();
  };
  for (const auto& adapter : adapters_) {
    if (adapter != nullptr) add(*adapter);
  }
  for (const auto& [id, adapter] : read_) add(*adapter);
  return static_cast<int64_t>(bytes);
}

}  // namespace somnus

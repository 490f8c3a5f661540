#include "worker/runner/rank_adapters.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/family.h"
#include "kernels/float_convert.h"

namespace somnus {
namespace {

std::vector<uint8_t> Converted(const std::vector<float>& values, DataType dtype) {
  std::vector<uint8_t> bytes(values.size() * static_cast<size_t>(SizeOf(dtype)));
  ConvertFromFloat(values.data(), static_cast<int64_t>(values.size()), dtype, bytes.data());
  return bytes;
}

absl::Status Annotated(const absl::Status& status, const v1::WorkerAdapter& adapter) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("adapter '", adapter.name(), "' (", adapter.path(),
                                                  "): ", status.message()));
}

}  // namespace

RankAdapters::RankAdapters(const ModelConfig* config, const ModelShards* shards,
                           const ModelRunnerOptions& options, Device* device)
    : config_(*config),
      layers_(shards->layers),
      dtype_(options.dtype),
      max_adapters_(options.max_adapters),
      max_rank_(options.max_lora_rank),
      max_tokens_(options.max_num_batched_tokens),
      device_(*device),
      parts_([&] {
        std::vector<Linear> parts;
        for (int target = 0; target < kNumLoraTargets; ++target)
          parts.push_back(PartOf(static_cast<LoraTarget>(target), *config, *shards));
        return parts;
      }()),
      adapters_(static_cast<size_t>(options.max_adapters)),
      places_(options.max_adapters, options.max_loras) {}

RankAdapters::Linear RankAdapters::PartOf(LoraTarget target, const ModelConfig& config,
                                          const ModelShards& shards) {
  const Range hidden = {0, config.hidden_size};
  const auto dims = [&](const Range& heads) {
    return Range{heads.begin * config.head_dim, heads.end * config.head_dim};
  };
  switch (target) {
    case LoraTarget::kQuery:
      return {dims(shards.heads), hidden};
    case LoraTarget::kKey:
    case LoraTarget::kValue:
      return {dims(shards.kv_heads), hidden};
    case LoraTarget::kOut:
      return {hidden, dims(shards.heads)};
    case LoraTarget::kGate:
      return {config.family->gated_mlp ? shards.mlp : Range(), hidden};
    case LoraTarget::kUp:
      return {shards.mlp, hidden};
    case LoraTarget::kDown:
      return {hidden, shards.mlp};
  }
  return {};
}

void RankAdapters::Carve(Carver* carver) {
  const int64_t num_linears = layers_.size() * kNumLoraTargets;
  const int64_t rows = int64_t{places_.num_places()} * max_rank_;
  ranks_ = carver->Take<int32_t>(num_linears * places_.num_places());
  weights_.hidden = carver->TakeMatrix(DataType::kF32, max_tokens_, max_rank_);
  weights_.linears.clear();
  for (int64_t i = 0; i < num_linears; ++i) {
    const Linear& part = parts_[static_cast<size_t>(i % kNumLoraTargets)];
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
    const Matrices& matrices = adapters_[move.slot - 1]->linears[i];
    const LoraWeights& linear = weights_.linears[i];
    copy(linear.a, first_row * linear.k * SizeOf(dtype_), matrices.a);
    copy(linear.b, first_row * linear.n * SizeOf(dtype_), matrices.b);
    host_ranks_[i * static_cast<size_t>(places_.num_places()) + static_cast<size_t>(move.place)] =
        matrices.rank;
  }
}

absl::Status RankAdapters::Set(absl::Span<const v1::WorkerAdapter> adapters) {
  RETURN_IF_ERROR(Check(adapters));
  std::vector<std::shared_ptr<const Adapter>> next(adapters_.size());
  for (const v1::WorkerAdapter& adapter : adapters) {
    const size_t index = static_cast<size_t>(adapter.slot() - 1);
    const bool is_held = adapters_[index] != nullptr && adapters_[index]->id == adapter.id();
    if (is_held) {
      next[index] = adapters_[index];
      continue;
    }
    absl::StatusOr<std::shared_ptr<const Adapter>> read = Read(adapter);
    RETURN_IF_ERROR(Annotated(read.status(), adapter));
    next[index] = *std::move(read);
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

absl::StatusOr<std::shared_ptr<const RankAdapters::Adapter>> RankAdapters::Read(
    const v1::WorkerAdapter& adapter) const {
  ASSIGN_OR_RETURN(const std::unique_ptr<LoraAdapter> files,
                   LoraAdapter::Open(adapter.path(), config_, max_rank_));
  auto read = std::make_shared<Adapter>();
  read->id = adapter.id();
  for (int64_t layer = layers_.begin; layer < layers_.end; ++layer) {
    for (int target = 0; target < kNumLoraTargets; ++target) {
      ASSIGN_OR_RETURN(const LoraMatrices whole,
                       files->Read(static_cast<int32_t>(layer), static_cast<LoraTarget>(target)));
      read->linears.push_back(Convert(whole, parts_[target]));
    }
  }
  ASSIGN_OR_RETURN(read->fingerprint, files->Fingerprint());
  return read;
}

RankAdapters::Matrices RankAdapters::Convert(const LoraMatrices& whole, const Linear& part) const {
  Matrices matrices;
  if (whole.rank == 0 || part.rows.empty() || part.cols.empty()) return matrices;
  const int64_t rank = whole.rank, in_features = static_cast<int64_t>(whole.a.size()) / rank;
  std::vector<float> a, b;
  a.reserve(static_cast<size_t>(rank * part.cols.size()));
  b.reserve(static_cast<size_t>(rank * part.rows.size()));
  for (int64_t r = 0; r < rank; ++r) {
    const auto row = whole.a.begin() + r * in_features;
    a.insert(a.end(), row + part.cols.begin, row + part.cols.end);
    for (int64_t n = part.rows.begin; n < part.rows.end; ++n)
      b.push_back(whole.b[static_cast<size_t>(n * rank + r)]);
  }
  matrices.rank = whole.rank;
  matrices.a = Converted(a, dtype_);
  matrices.b = Converted(b, dtype_);
  return matrices;
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
  for (const auto& adapter : adapters_) {
    if (adapter == nullptr) continue;
    for (const Matrices& matrices : adapter->linears) bytes += matrices.a.size() + matrices.b.size();
  }
  return static_cast<int64_t>(bytes);
}

}  // namespace somnus

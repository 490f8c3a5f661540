#include "worker/runner/adapter_reader.h"

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

absl::Status OfAdapter(const absl::Status& status, const v1::WorkerAdapter& adapter) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("adapter '", adapter.name(), "' (", adapter.path(),
                                                  "): ", status.message()));
}

}  // namespace

AdapterReader::AdapterReader(const ModelConfig& config, const ModelShards& shards,
                             const ModelRunnerOptions& options)
    : config_(config),
      layers_(shards.layers),
      dtype_(options.dtype),
      max_rank_(options.max_lora_rank),
      parts_([&] {
        std::vector<Part> parts;
        for (int target = 0; target < kNumLoraTargets; ++target)
          parts.push_back(PartOf(static_cast<LoraTarget>(target), config, shards));
        return parts;
      }()) {}

AdapterReader::Part AdapterReader::PartOf(LoraTarget target, const ModelConfig& config,
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

absl::StatusOr<std::shared_ptr<const HostAdapter>> AdapterReader::Read(
    const v1::WorkerAdapter& adapter, const std::function<bool()>& has_left) const {
  absl::StatusOr<std::shared_ptr<const HostAdapter>> read = ReadFiles(adapter, has_left);
  RETURN_IF_ERROR(OfAdapter(read.status(), adapter));
  return read;
}

absl::StatusOr<std::shared_ptr<const HostAdapter>> AdapterReader::ReadFiles(
    const v1::WorkerAdapter& adapter, const std::function<bool()>& has_left) const {
  ASSIGN_OR_RETURN(const std::unique_ptr<LoraAdapter> files,
                   LoraAdapter::Open(adapter.path(), config_, max_rank_));
  auto read = std::make_shared<HostAdapter>();
  read->id = adapter.id();
  for (int64_t layer = layers_.begin; layer < layers_.end; ++layer) {
    for (int target = 0; target < kNumLoraTargets; ++target) {
      if (has_left()) return absl::CancelledError("nobody waits for the adapter");
      ASSIGN_OR_RETURN(const LoraMatrices whole,
                       files->Read(static_cast<int32_t>(layer), static_cast<LoraTarget>(target)));
      read->linears.push_back(Convert(whole, part(target)));
    }
  }
  ASSIGN_OR_RETURN(read->fingerprint, files->Fingerprint());
  return read;
}

HostAdapter::Matrices AdapterReader::Convert(const LoraMatrices& whole, const Part& part) const {
  HostAdapter::Matrices matrices;
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

}  // namespace somnus

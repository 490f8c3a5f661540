#pragma once
// A rank's adapters (LoRA): its parts of A and B of every linear. Each adapter has a slot, by which steps
// name the adapter, and a copy in host memory. The workspace has places of one size, of which there may be
// fewer than slots: before a step its adapters are copied into places (adapter_places.h). A sleep loses the
// places, and later steps fill the places again: adapters survive every sleep, reload and update of the
// model, and their files are read once. Another thread may have read the files ahead, by reader().
//
// Borrowed, and must outlive this object: the device. Used by the runner thread alone.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "checkpoint/lora_adapter.h"
#include "kernels/device.h"
#include "proto/worker.pb.h"
#include "worker/model/adapter_weights.h"
#include "worker/model/carver.h"
#include "worker/model/shards.h"
#include "worker/runner/adapter_places.h"
#include "worker/runner/adapter_reader.h"
#include "worker/runner/batch_state.h"
#include "worker/runner/model_runner.h"

namespace somnus {

class RankAdapters {
 public:
  RankAdapters(const ModelConfig& config, const ModelShards& shards, const ModelRunnerOptions& options,
               Device* device);
  RankAdapters(const RankAdapters&) = delete;

  // Takes the places from the workspace.
  void Carve(Carver* carver);
  // To be called after Carve, and after a sleep has lost the workspace: no place has an adapter.
  void EmptyPlaces();
  const std::shared_ptr<const AdapterReader>& reader() const { return reader_; }
  // As ModelRunner::AddReadAdapters.
  void AddRead(std::vector<std::shared_ptr<const HostAdapter>> adapters);
  // As ModelRunner::CheckAdapters.
  absl::Status Check(absl::Span<const v1::WorkerAdapter> adapters) const;
  // As ModelRunner::SetAdapters, for the copies. Places of adapters that go are empty.
  absl::Status Set(absl::Span<const v1::WorkerAdapter> adapters);
  // Gives every adapter of the scheduled sequences a place. Waits for the device where an adapter is copied.
  // InvalidArgument: the sequences have more adapters than there are places.
  absl::Status Place(const BatchState& state);

  // Stays at its address. By place.
  const AdapterWeights& weights() const { return weights_; }
  // [max_adapters]: the place of each slot's adapter; -1: none.
  const std::vector<int32_t>& places() const { return places_.places(); }
  // [max_adapters]: which slots have an adapter.
  std::vector<bool> loaded() const;
  // As ModelRunner::AdapterFingerprints.
  std::map<uint64_t, std::string> Fingerprints() const;
  // The bytes of host memory that the copies take, and the adapters that AddRead has brought.
  int64_t adapter_host_bytes() const;

 private:
  // Queues the copies of the slot's adapter, but for its ranks.
  void Write(const AdapterPlaces::Move& move);

  const std::shared_ptr<const AdapterReader> reader_;
  const Range layers_;  // of the rank's stage
  const DataType dtype_;
  const int32_t max_adapters_;
  const int32_t max_rank_;
  const int64_t max_tokens_;
  Device& device_;

  AdapterWeights weights_;
  int32_t* ranks_ = nullptr;  // [layers_.size()][kNumLoraTargets][places], on the device
  std::vector<int32_t> host_ranks_;
  std::vector<std::shared_ptr<const HostAdapter>> adapters_;     // [max_adapters]; null: the slot is free
  std::map<uint64_t, std::shared_ptr<const HostAdapter>> read_;  // by id: adapters from AddRead
  AdapterPlaces places_;
};

}  // namespace somnus

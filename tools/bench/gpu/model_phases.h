#pragma once
// A whole model with random weights on a GPU: decode, prefill, sleep and wake-up, loading.

#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/bench/decode/decode_loop.h"
#include "tools/bench/gpu/bench_report.h"
#include "tools/bench/gpu/ceilings.h"
#include "tools/bench/gpu/gpu_bench_flags.h"

namespace somnus {

// Each part loads the model anew before its first row.
class ModelPhases {
 public:
  using OpenDevice = std::function<absl::StatusOr<LoopDevice>()>;

  ModelPhases(const GpuBenchFlags& flags, const GpuCeilings& ceilings, OpenDevice open, BenchReport& report)
      : flags_(flags), ceilings_(ceilings), open_(std::move(open)), report_(report) {}

  // The part "model": "graphs", "decode, batch N" and "prefill, N tokens".
  absl::Status Model();
  // The part "sleep": "first", "second" and "one-second".
  absl::Status Sleep();
  // The part "load": "first" and "second".
  absl::Status Load();

 private:
  absl::StatusOr<std::unique_ptr<DecodeLoop>> LoadModel(int32_t max_batch, int32_t max_len,
                                                        double kv_share = 0);
  absl::Status Graphs(const DecodeLoop& loop);
  absl::Status Decode(DecodeLoop& loop, int32_t batch, const std::string& name);
  absl::Status Prefill();
  int32_t SleepPrompt() const;
  // Steps between which the model sleeps.
  absl::Status RunBesideSleep(DecodeLoop& loop);
  absl::Status SleepOnce(DecodeLoop& loop, const std::string& name, absl::Duration pause);
  absl::Status LoadTwice(const std::string& checkpoint);

  const GpuBenchFlags& flags_;
  const GpuCeilings& ceilings_;
  const OpenDevice open_;
  BenchReport& report_;
};

}  // namespace somnus

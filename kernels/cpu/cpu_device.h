#pragma once
// The CPU device: a thread pool, the kernels of one instruction set, and lent scratch.

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/device.h"
#include "kernels/op_table.h"

namespace somnus::cpu {

SOMNUS_OPS(SOMNUS_DECLARE_OP)

class CpuDevice final : public Device {
 public:
  CpuDevice(const KernelTable& kernels, Partition partition, std::vector<int> pin_cpus, bool spin)
      : kernels_(kernels),
        partition_(std::move(partition)),
        pool_(partition_.num_threads(), std::move(pin_cpus), spin),
        pieces_(partition_.num_threads()) {}

  DeviceKind kind() const override { return DeviceKind::kCpu; }
  const OpTable& ops() const override;
  std::string Describe() const override;
  void SetWorkspace(void* data, int64_t bytes) override {
    workspace_ = static_cast<char*>(data);
    workspace_bytes_ = bytes;
  }
  void BeginStep() override { pool_.BeginStep(); }
  void EndStep() override { pool_.EndStep(); }
  void UnpinCaller() override { pool_.UnpinCaller(); }
  bool asynchronous() const override { return false; }
  absl::StatusOr<void*> AllocatePinned(int64_t bytes) override;
  void FreePinned(void* data) override;
  DeviceUploader* uploader() override { return nullptr; }
  absl::StatusOr<std::unique_ptr<DeviceEvent>> CreateEvent() override;
  absl::Status BeginCapture() override;
  absl::StatusOr<std::unique_ptr<DeviceGraph>> EndCapture() override;
  void CopyToDevice(void* device, const void* host, int64_t bytes) override {
    if (bytes > 0) std::memcpy(device, host, static_cast<size_t>(bytes));
  }
  void CopyToHost(void* host, const void* device, int64_t bytes) override {
    if (bytes > 0) std::memcpy(host, device, static_cast<size_t>(bytes));
  }
  absl::Status Synchronize() override { return absl::OkStatus(); }  // Ops are done when they return.

  const KernelTable& kernels() const { return kernels_; }
  int num_threads() const { return pool_.num_threads(); }
  const Partition& partition() const { return partition_; }
  char* workspace() const { return workspace_; }
  int64_t workspace_bytes() const { return workspace_bytes_; }

  // Calls fn(begin, end) on several threads for parts that make up [0, total), in proportion to the threads'
  // speeds; once, on the caller's thread, when `cost`, in rough cycles, is too small to be worth waking
  // threads. How [0, total) is cut must not influence results.
  template <typename Fn>
  void ParallelFor(int64_t total, int64_t cost, const Fn& fn) {
    if (cost < kMinParallelCost || num_threads() == 1 || total == 1) {
      if (total > 0) fn(int64_t{0}, total);
      return;
    }
    pool_.Run([&](int thread) {
      const Range part = partition_.PartOf(total, thread);
      if (part.begin < part.end) fn(part.begin, part.end);
    });
  }

  // As ParallelFor, but each part is cut into so many pieces, and threads that are done take over pieces of
  // other threads' parts: for ops that take long, and find little in a thread's caches.
  template <typename Fn>
  void BalancedFor(int64_t total, int64_t pieces_of_part, const Fn& fn) {
    pieces_.Reset(partition_, total, pieces_of_part);
    pool_.Run([&](int thread) {
      for (Range piece = pieces_.Take(thread); piece.begin < piece.end; piece = pieces_.Take(thread))
        fn(piece.begin, piece.end);
    });
  }

  // Calls fn(thread, partition) on every thread; only fn(0, a partition for one thread), on the caller's
  // thread, when `cost` is small.
  template <typename Fn>
  void OnThreads(int64_t cost, const Fn& fn) {
    if (cost < kMinParallelCost || num_threads() == 1) {
      fn(0, Partition(1));
      return;
    }
    pool_.Run([&](int thread) { fn(thread, partition_); });
  }

 private:
  static constexpr int64_t kMinParallelCost = 6000;

  const KernelTable& kernels_;
  const Partition partition_;
  ThreadPool pool_;
  Pieces pieces_;
  char* workspace_ = nullptr;
  int64_t workspace_bytes_ = 0;
};

inline CpuDevice& AsCpu(Device& device) { return static_cast<CpuDevice&>(device); }
inline const CpuDevice& AsCpu(const Device& device) { return static_cast<const CpuDevice&>(device); }

}  // namespace somnus::cpu

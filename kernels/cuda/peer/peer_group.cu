// The host's side of collectives over peer memory: makes the memory, shows it to the peers, and queues the
// kernels of all_reduce.cu.

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "kernels/cuda/peer/all_reduce.h"
#include "kernels/cuda/peer/peer_memory.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {
namespace {

absl::Status CudaStatus(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return absl::OkStatus();
  const std::string text = absl::StrCat(what, ": ", cudaGetErrorString(error));
  cudaGetLastError();  // reported here, so that the next launch does not find the error
  return error == cudaErrorMemoryAllocation ? absl::ResourceExhaustedError(text)
                                            : absl::UnavailableError(text);
}

uint64_t RandomToken() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

uint64_t ProcessToken() {
  static const uint64_t token = RandomToken();
  return token;
}

// The device with this id; -1 where this process does not see the device.
int IndexOf(const char (&uuid)[16]) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) count = 0;
  for (int index = 0; index < count; ++index) {
    cudaDeviceProp properties;
    if (cudaGetDeviceProperties(&properties, index) != cudaSuccess) continue;
    if (std::memcmp(&properties.uuid, uuid, sizeof(uuid)) == 0) return index;
  }
  cudaGetLastError();
  return -1;
}

// Atomics on another device's memory are native over NVLink (over PCIe at most some are), and a performance
// rank of 0 is the fastest link, as cudaDeviceGetP2PAttribute documents. A link that cannot be determined is
// taken for the slower link.
PeerLink LinkBetween(int from, int to) {
  int native_atomics = 0, performance_rank = 1;
  if (to < 0 ||
      cudaDeviceGetP2PAttribute(&native_atomics, cudaDevP2PAttrNativeAtomicSupported, from, to) !=
          cudaSuccess ||
      cudaDeviceGetP2PAttribute(&performance_rank, cudaDevP2PAttrPerformanceRank, from, to) != cudaSuccess) {
    cudaGetLastError();
    return PeerLink::kPcie;
  }
  return native_atomics != 0 && performance_rank == 0 ? PeerLink::kNvLink : PeerLink::kPcie;
}

absl::Status CheckOptions(const PeerOptions& options) {
  if (options.world_size < 2 || options.world_size > kMaxPeers) {
    return absl::InvalidArgumentError(
        absl::StrCat("world_size: ", options.world_size, " is not 2 to ", kMaxPeers));
  }
  if (options.rank < 0 || options.rank >= options.world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank: ", options.rank, " is not in a group of ", options.world_size));
  }
  if (options.buffer_bytes < 256 || options.buffer_bytes % 256 != 0 ||
      options.buffer_bytes > int64_t{1} << 30) {
    return absl::InvalidArgumentError("buffer_bytes: a multiple of 256 up to 1 GiB is wanted");
  }
  return absl::OkStatus();
}

class PeerGroup final : public PeerCollectives {
 public:
  PeerGroup(CudaDevice& device, const PeerOptions& options) : device_(device) {
    view_.rank = options.rank;
    view_.world_size = options.world_size;
    view_.buffer_bytes = options.buffer_bytes;
    view_.timeout_ns = absl::ToInt64Nanoseconds(options.timeout);
    timeout_ = options.timeout;
    wanted_one_shot_bytes_ = options.one_shot_bytes;
    SetGroupLink(PeerLink::kNvLink);
  }

  ~PeerGroup() override {
    device_.Synchronize().IgnoreError();
    Disconnect();
    if (memory_ != nullptr) cudaFree(memory_);
    if (stop_ != nullptr) cudaFreeHost(stop_);
  }

  absl::Status Allocate() {
    // Whole pages of the device, so that exported memory shares no page with other allocations.
    const int64_t bytes = RoundUpTo(sizeof(PeerMemory) + 2 * view_.buffer_bytes, 2 << 20);
    RETURN_IF_ERROR(CudaStatus(cudaMalloc(&memory_, static_cast<size_t>(bytes)), "memory for peers"));
    RETURN_IF_ERROR(CudaStatus(cudaMemset(memory_, 0, sizeof(PeerMemory)), "clearing memory for peers"));
    RETURN_IF_ERROR(CudaStatus(cudaHostAlloc(&stop_, 128, cudaHostAllocMapped | cudaHostAllocPortable),
                               "the word that stops"));
    *stop_ = kRunning;
    void* mapped = nullptr;
    RETURN_IF_ERROR(CudaStatus(cudaHostGetDevicePointer(&mapped, stop_, 0), "mapping the word that stops"));
    view_.stop = static_cast<uint32_t*>(mapped);

    handle_.process = ProcessToken();
    handle_.token = RandomToken();
    handle_.fuses = device_.switches().fused_all_reduce ? 1 : 0;
    handle_.address = reinterpret_cast<uint64_t>(memory_);
    handle_.buffer_bytes = view_.buffer_bytes;
    int index = 0;
    cudaDeviceProp properties;
    RETURN_IF_ERROR(CudaStatus(cudaGetDevice(&index), "cudaGetDevice"));
    RETURN_IF_ERROR(CudaStatus(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties"));
    static_assert(sizeof(properties.uuid) == sizeof(handle_.device_uuid));
    std::memcpy(handle_.device_uuid, &properties.uuid, sizeof(handle_.device_uuid));
    cudaIpcMemHandle_t ipc;
    static_assert(sizeof(ipc) == sizeof(handle_.ipc));
    RETURN_IF_ERROR(CudaStatus(cudaIpcGetMemHandle(&ipc, memory_), "exporting memory to peers"));
    std::memcpy(handle_.ipc, &ipc, sizeof(ipc));
    // The peers may read the memory as soon as they have the handle.
    return CudaStatus(cudaDeviceSynchronize(), "clearing memory for peers");
  }

  PeerHandle handle() const override { return handle_; }

  absl::Status Connect(absl::Span<const PeerHandle> handles) override {
    if (static_cast<int>(handles.size()) != view_.world_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("handles: ", handles.size(), " for ", view_.world_size, " ranks"));
    }
    for (int r = 0; r < view_.world_size; ++r) {
      if (absl::Status status = Map(r, handles[r]); !status.ok()) {
        return absl::Status(status.code(), absl::StrCat("memory of rank ", r, ": ", status.message()));
      }
      tokens_.of[r] = handles[r].token;
      const bool same_device =
          std::memcmp(handles[r].device_uuid, handle_.device_uuid, sizeof(handle_.device_uuid)) == 0;
      if (!same_device)
        link_ = std::max(link_, LinkBetween(device_.index(), IndexOf(handles[r].device_uuid)));
    }
    connected_ = true;
    return absl::OkStatus();
  }

  absl::Status WriteProbe() override {
    SOMNUS_CHECK(connected_);
    QueueProbeWrite(device_, view_, tokens_);
    return device_.Synchronize();
  }

  absl::Status CheckProbe() override {
    SOMNUS_CHECK(connected_);
    QueueProbeCheck(device_, view_, tokens_);
    uint32_t errors[kMaxPeers] = {};
    device_.CopyToHost(errors, &memory_->probe_errors, sizeof(errors));
    RETURN_IF_ERROR(device_.Synchronize());
    for (int r = 0; r < view_.world_size; ++r) {
      if (errors[r] == 0) continue;
      return absl::UnavailableError(absl::StrCat("memory of rank ", r, ": ", errors[r],
                                                 " words differ from what it wrote (is direct access between "
                                                 "the devices broken on this system?)"));
    }
    return absl::OkStatus();
  }

  PeerLink link() const override { return link_; }
  void SetGroupLink(PeerLink link) override {
    one_shot_bytes_ =
        wanted_one_shot_bytes_ >= 0 ? wanted_one_shot_bytes_ : OneShotBytes(view_.world_size, link);
  }

  void Disconnect() override {
    connected_ = false;
    // Mappings belong to the device; the destroying thread may have chosen another device.
    cudaSetDevice(device_.index());
    for (int r = 0; r < view_.world_size; ++r) {
      if (std::exchange(opened_[r], false)) cudaIpcCloseMemHandle(view_.memory[r]);
    }
  }

  void AllReduceSum(void* data, int64_t count, DataType type) override {
    SOMNUS_CHECK(connected_ && count >= 0);
    const int64_t piece = view_.buffer_bytes / SizeOf(type);
    for (int64_t begin = 0; begin < count; begin += piece) {
      QueuePeerReduce(device_, view_, one_shot_bytes_, static_cast<char*>(data) + begin * SizeOf(type),
                      std::min(piece, count - begin), type);
    }
  }

  void AllGather(const void* in, int64_t bytes, void* out) override {
    SOMNUS_CHECK(connected_ && bytes >= 0);
    for (int64_t begin = 0; begin < bytes; begin += view_.buffer_bytes) {
      QueuePeerGather(device_, view_, static_cast<const char*>(in) + begin,
                      std::min(view_.buffer_bytes, bytes - begin), static_cast<char*>(out) + begin, bytes);
    }
  }

  bool AllReduceAddRmsNorm(const TensorView& residual, const TensorView& delta, const float* weight,
                           double eps, const TensorView& out) override {
    SOMNUS_CHECK(connected_ && delta.stride == delta.cols);
    return device_.switches().fused_all_reduce && delta.rows > 0 &&
           QueuePeerNorm(device_, view_, one_shot_bytes_, residual, delta, weight, eps, out);
  }

  void Stop() override {
    uint32_t running = kRunning;  // the first reason stays
    std::atomic_ref<uint32_t>(*stop_).compare_exchange_strong(running, kStopped);
  }

  absl::Status status() const override {
    const uint32_t stop = std::atomic_ref<uint32_t>(*stop_).load(std::memory_order_acquire);
    if (stop == kRunning) return absl::OkStatus();
    if (stop == kStopped) return absl::AbortedError("collectives over peer memory were stopped");
    return absl::DeadlineExceededError(absl::StrCat(
        "rank ", stop - kTimedOut, " did not come to a collective within ", absl::FormatDuration(timeout_)));
  }

 private:
  absl::Status Map(int rank, const PeerHandle& peer) {
    if (rank == view_.rank) {
      view_.memory[rank] = memory_;
      return absl::OkStatus();
    }
    if (peer.buffer_bytes != view_.buffer_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("buffers of ", peer.buffer_bytes, " and ", view_.buffer_bytes, " bytes"));
    }
    if (peer.fuses != handle_.fuses) {
      return absl::InvalidArgumentError("SOMNUS_CUDA_DISABLE: fused_all_reduce is not the same on all ranks");
    }
    if (peer.process == handle_.process) {  // mapped already
      if (std::memcmp(peer.device_uuid, handle_.device_uuid, sizeof(peer.device_uuid)) != 0) {
        return absl::UnavailableError("ranks of one process must share a device");
      }
      view_.memory[rank] = reinterpret_cast<PeerMemory*>(peer.address);
      return absl::OkStatus();
    }
    cudaIpcMemHandle_t ipc;
    std::memcpy(&ipc, peer.ipc, sizeof(ipc));
    void* mapped = nullptr;
    RETURN_IF_ERROR(CudaStatus(cudaIpcOpenMemHandle(&mapped, ipc, cudaIpcMemLazyEnablePeerAccess),
                               "cannot be reached from this device"));
    view_.memory[rank] = static_cast<PeerMemory*>(mapped);
    opened_[rank] = true;
    return absl::OkStatus();
  }

  CudaDevice& device_;
  PeerView view_ = {};
  PeerHandle handle_;
  absl::Duration timeout_;
  int64_t wanted_one_shot_bytes_ = -1;  // PeerOptions'
  int64_t one_shot_bytes_ = 0;
  PeerTokens tokens_ = {};
  PeerLink link_ = PeerLink::kNvLink;
  PeerMemory* memory_ = nullptr;
  uint32_t* stop_ = nullptr;  // PeerView::stop, at the host's address
  bool opened_[kMaxPeers] = {};
  bool connected_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<PeerCollectives>> MakePeerCollectives(CudaDevice& device,
                                                                     const PeerOptions& options) {
  RETURN_IF_ERROR(CheckOptions(options));
  if (!device.switches().peer_memory) {
    return absl::UnavailableError("SOMNUS_CUDA_DISABLE turns peer memory off");
  }
  if (const int num_sms = device.chip().num_sms; num_sms * kPeerBlocksPerSm < kMaxPeerBlocks) {
    return absl::UnavailableError(absl::StrCat("the device's ", num_sms, " multiprocessors do not hold the ",
                                               kMaxPeerBlocks, " blocks of a collective at once"));
  }
  auto group = std::make_unique<PeerGroup>(device, options);
  RETURN_IF_ERROR(group->Allocate());
  return group;
}

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE

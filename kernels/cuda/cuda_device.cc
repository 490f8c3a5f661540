#include "kernels/cuda/cuda_device.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "kernels/cuda/driver_version.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/probe.h"
#include "kernels/cuda/weight_uploader.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {
namespace {

constexpr int kOldestComputeCapability = 80;
constexpr int64_t kDefaultSharedBytes = 48 << 10;  // more must be opted into

thread_local HostCalls calls_of_this_thread;

// Clears the runtime's last error, so that a later check does not find the error again.
absl::Status ToStatus(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return absl::OkStatus();
  cudaGetLastError();
  const std::string text =
      absl::StrCat(what, ": ", cudaGetErrorString(error), " (", cudaGetErrorName(error), ")");
  if (error == cudaErrorMemoryAllocation) return absl::ResourceExhaustedError(text);
  return absl::InternalError(text);
}

class CudaEvent final : public DeviceEvent {
 public:
  CudaEvent(CudaDevice& device, cudaEvent_t event) : device_(device), event_(event) {}
  ~CudaEvent() override { cudaEventDestroy(event_); }
  void Record() override { device_.Record(cudaEventRecord(event_, device_.stream()), "recording an event"); }
  // Called from any thread: a thread that has chosen no device would create a context on device 0.
  absl::Status Wait() override {
    ++calls_of_this_thread.waits;
    RETURN_IF_ERROR(ToStatus(cudaSetDevice(device_.index()), "choosing the CUDA device"));
    return ToStatus(cudaEventSynchronize(event_), "waiting for the device");
  }

 private:
  CudaDevice& device_;
  const cudaEvent_t event_;
};

class CudaGraph final : public DeviceGraph {
 public:
  CudaGraph(CudaDevice& device, cudaGraphExec_t exec) : device_(device), exec_(exec) {}
  ~CudaGraph() override { cudaGraphExecDestroy(exec_); }
  void Launch() override {
    ++calls_of_this_thread.graph_launches;
    device_.Record(cudaGraphLaunch(exec_, device_.stream()), "launching a graph");
  }

 private:
  CudaDevice& device_;
  const cudaGraphExec_t exec_;
};

absl::Status CheckDriver() {
  int driver = 0, runtime = 0;
  RETURN_IF_ERROR(ToStatus(cudaRuntimeGetVersion(&runtime), "asking the CUDA runtime for its version"));
  RETURN_IF_ERROR(ToStatus(cudaDriverGetVersion(&driver), "asking the CUDA driver for its version"));
  return CheckDriverVersion(driver, runtime, LoadedDriverRelease());
}

absl::StatusOr<ChipLimits> ReadChip(int index) {
  const auto attribute = [&](cudaDeviceAttr name) -> absl::StatusOr<int> {
    int value = 0;
    RETURN_IF_ERROR(ToStatus(cudaDeviceGetAttribute(&value, name, index), "reading a device attribute"));
    return value;
  };
  ASSIGN_OR_RETURN(const int major, attribute(cudaDevAttrComputeCapabilityMajor));
  ASSIGN_OR_RETURN(const int minor, attribute(cudaDevAttrComputeCapabilityMinor));
  ChipLimits chip;
  chip.compute_capability = 10 * major + minor;
  ASSIGN_OR_RETURN(chip.num_sms, attribute(cudaDevAttrMultiProcessorCount));
  ASSIGN_OR_RETURN(chip.max_shared_bytes, attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin));
  ASSIGN_OR_RETURN(chip.shared_bytes_per_sm, attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor));
  ASSIGN_OR_RETURN(chip.l2_bytes, attribute(cudaDevAttrL2CacheSize));
  return chip;
}

// Returns nullptr where there is no library: our own kernels can do everything that the library does.
absl::StatusOr<std::unique_ptr<Gemm>> OpenGemm(const ChipLimits& chip, const DebugSwitches& switches) {
  absl::StatusOr<std::unique_ptr<Gemm>> gemm =
      switches.cublaslt ? Gemm::Create(chip)
                        : absl::UnavailableError("SOMNUS_CUDA_DISABLE turns cuBLASLt off");
  if (!absl::IsUnavailable(gemm.status())) return gemm;
  LogWarning("{}: Somnus's own kernels make all matrix products, those of many rows more slowly",
             std::string(gemm.status().message()));
  return nullptr;
}

}  // namespace

absl::Status CheckDevice(int index) {
  RETURN_IF_ERROR(CheckDriver());
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) cudaGetLastError();
  if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0)) {
    return absl::UnavailableError("no CUDA device: the NVIDIA driver shows none to this process");
  }
  if (error != cudaSuccess) {
    return absl::UnavailableError(absl::StrCat("no CUDA device: ", cudaGetErrorString(error)));
  }
  if (index < 0 || index >= count) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no CUDA device ", index, ": this process sees ", count, ", counted from 0"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<CudaDevice>> CudaDevice::Create(int index) {
  RETURN_IF_ERROR(CheckDevice(index));
  ASSIGN_OR_RETURN(const DebugSwitches switches, ReadDebugSwitches());
  RETURN_IF_ERROR(ToStatus(cudaSetDevice(index), "choosing the CUDA device"));
  std::unique_ptr<CudaDevice> device(new CudaDevice);
  device->index_ = index;
  device->switches_ = switches;
  ASSIGN_OR_RETURN(device->chip_, ReadChip(index));
  // Kernels on older chips do not wait for the kernel in front (griddepcontrol needs 9.0), and must not start
  // early.
  device->switches_.programmatic_launch =
      switches.programmatic_launch && device->chip_.compute_capability >= 90;
  cudaDeviceProp properties;
  RETURN_IF_ERROR(ToStatus(cudaGetDeviceProperties(&properties, index), "reading the device's properties"));
  device->name_ = absl::StrFormat("cuda:%d, %s, sm_%d, %d multiprocessors, %.1f GiB", index, properties.name,
                                  device->chip_.compute_capability, device->chip_.num_sms,
                                  static_cast<double>(properties.totalGlobalMem) / (1 << 30));
  if (device->chip_.compute_capability < kOldestComputeCapability) {
    return absl::UnavailableError(absl::StrCat(device->name_, ": compute capability 8.0 or newer is needed"));
  }
  RETURN_IF_ERROR(
      ToStatus(cudaStreamCreateWithFlags(&device->stream_, cudaStreamNonBlocking), "making a stream"));
  RunProbe(*device);
  if (const absl::Status ran = device->Synchronize(); !ran.ok()) {
    return absl::UnavailableError(
        absl::StrCat(device->name_, ": this program's kernels do not run on it (built for ",
                     "another chip? --config=cuda_all builds for all): ", ran.message()));
  }
  ASSIGN_OR_RETURN(device->gemm_, OpenGemm(device->chip_, switches));
  device->uploader_ = std::make_unique<WeightUploader>(index);
  return device;
}

CudaDevice::CudaDevice() : swaps_(this) {}

CudaDevice::~CudaDevice() {
  uploader_.reset();
  gemm_.reset();
  if (stream_ == nullptr) return;
  cudaStreamSynchronize(stream_);
  cudaStreamDestroy(stream_);
}

std::string CudaDevice::Describe() const { return name_; }

void CudaDevice::SetWorkspace(void* data, int64_t bytes) {
  workspace_ = static_cast<char*>(data);
  workspace_bytes_ = bytes;
}

void CudaDevice::Record(cudaError_t error, const char* what) {
  if (error != cudaSuccess) Record(ToStatus(error, what));
}

void CudaDevice::Record(absl::Status status) {
  const std::lock_guard<std::mutex> lock(error_mu_);
  if (error_.ok()) error_ = std::move(status);
}

absl::Status CudaDevice::TakeError() {
  const std::lock_guard<std::mutex> lock(error_mu_);
  return std::exchange(error_, absl::OkStatus());
}

bool CudaDevice::OptIntoShared(const void* kernel, int64_t bytes) {
  if (bytes <= kDefaultSharedBytes) return true;
  if (bytes > chip_.max_shared_bytes) {
    Record(absl::InternalError(absl::StrCat(
        "a kernel needs ", bytes, " bytes of shared memory, the chip has ", chip_.max_shared_bytes)));
    return false;
  }
  if (opted_.contains(kernel)) return true;
  // Opts into all of the chip's shared memory: the attribute is shared by the process, and a second rank in
  // the process (tests) that needs less for the same kernel would lower the attribute.
  const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                 static_cast<int>(chip_.max_shared_bytes));
  Record(error, "opting into shared memory");
  if (error == cudaSuccess) opted_.insert(kernel);
  return error == cudaSuccess;
}

absl::StatusOr<void*> CudaDevice::AllocatePinned(int64_t bytes) {
  ++calls_of_this_thread.waits;
  void* data = nullptr;
  // Called from any thread: a thread that has chosen no device would create a context on device 0.
  cudaError_t error = cudaSetDevice(index_);
  if (error == cudaSuccess)
    error = cudaHostAlloc(&data, static_cast<size_t>(bytes), cudaHostAllocPortable | cudaHostAllocMapped);
  if (error != cudaSuccess) {
    return ToStatus(error, absl::StrCat("allocating ", bytes, " bytes of pinned host memory").c_str());
  }
  return data;
}

void CudaDevice::FreePinned(void* data) {
  ++calls_of_this_thread.waits;
  if (data == nullptr) return;
  cudaError_t error = cudaSetDevice(index_);
  if (error == cudaSuccess) error = cudaFreeHost(data);
  Record(error, "freeing pinned host memory");
}

DeviceUploader* CudaDevice::uploader() { return uploader_.get(); }

absl::StatusOr<std::unique_ptr<DeviceEvent>> CudaDevice::CreateEvent() {
  // Blocking: a thread that waits for a step sleeps, and leaves the CPU to the runner, which prepares the
  // next.
  cudaEvent_t event = nullptr;
  RETURN_IF_ERROR(ToStatus(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync),
                           "making an event"));
  return std::make_unique<CudaEvent>(*this, event);
}

absl::Status CudaDevice::BeginCapture() {
  // Other threads of the process (uploads, communicators) may go on with calls that a capture forbids.
  absl::Status status =
      ToStatus(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "beginning a capture");
  capturing_ = status.ok();
  return status;
}

absl::StatusOr<std::unique_ptr<DeviceGraph>> CudaDevice::EndCapture() {
  cudaGraph_t graph = nullptr;
  capturing_ = false;
  const absl::Status ended = ToStatus(cudaStreamEndCapture(stream_, &graph), "ending a capture");
  // An op that could not be recorded is missing in the graph; the op's error says more than the capture's.
  absl::Status recorded = TakeError();
  cudaGraphExec_t exec = nullptr;
  absl::Status status = !recorded.ok() ? std::move(recorded) : ended;
  if (status.ok()) status = ToStatus(cudaGraphInstantiate(&exec, graph, 0), "making a graph");
  // Now rather than at the first launch: all memory that the graph needs has been taken then.
  if (status.ok()) status = ToStatus(cudaGraphUpload(exec, stream_), "bringing a graph to the device");
  if (graph != nullptr) cudaGraphDestroy(graph);
  if (!status.ok() && exec != nullptr) cudaGraphExecDestroy(exec);
  if (!status.ok()) return status;
  return std::make_unique<CudaGraph>(*this, exec);
}

void CudaDevice::CopyToDevice(void* device, const void* host, int64_t bytes) {
  if (bytes == 0) return;
  ++calls_of_this_thread.copies_to_device;
  Record(cudaMemcpyAsync(device, host, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream_),
         "copying to the device");
}

void CudaDevice::CopyToHost(void* host, const void* device, int64_t bytes) {
  if (bytes == 0) return;
  ++calls_of_this_thread.copies_to_host;
  Record(cudaMemcpyAsync(host, device, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, stream_),
         "copying to the host");
}

absl::Status CudaDevice::CopyFromProcess(absl::string_view handle, int64_t offset, int64_t bytes,
                                         void* host) {
  cudaIpcMemHandle_t ipc;
  if (handle.size() != sizeof(ipc)) {
    return absl::InvalidArgumentError(
        absl::StrCat("handle: has ", handle.size(), " bytes, not ", sizeof(ipc)));
  }
  std::memcpy(&ipc, handle.data(), sizeof(ipc));
  void* mapped = nullptr;
  // The handle opens on the calling thread's device.
  cudaError_t error = cudaSetDevice(index_);
  if (error == cudaSuccess) error = cudaIpcOpenMemHandle(&mapped, ipc, cudaIpcMemLazyEnablePeerAccess);
  if (error == cudaSuccess) {
    error = cudaMemcpy(host, static_cast<const char*>(mapped) + offset, static_cast<size_t>(bytes),
                       cudaMemcpyDeviceToHost);
    const cudaError_t closed = cudaIpcCloseMemHandle(mapped);
    if (error == cudaSuccess) error = closed;
  }
  const absl::Status status = ToStatus(error, "memory of another process");
  return status.ok() ? status : absl::InvalidArgumentError(status.message());
}

HostCalls CudaDevice::CallsOfThisThread() const { return calls_of_this_thread; }

absl::Status CudaDevice::Synchronize() {
  ++calls_of_this_thread.waits;
  if (uploader_ != nullptr) Record(uploader_->Wait());
  Record(cudaStreamSynchronize(stream_), "waiting for the device");
  swaps_.Synchronize();
  return TakeError();
}

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE

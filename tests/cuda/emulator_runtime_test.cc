// The emulated runtime defers, refuses and captures as CUDA documents.

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/cuda/emulator_util.h"

namespace somnus::cuda_emulated {
namespace {

class RuntimeTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cudaStreamCreateWithFlags(&other_, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cudaMalloc(&device_, 64), cudaSuccess);
    ASSERT_EQ(cudaMallocHost(&pinned_, 64), cudaSuccess);
    for (int i = 0; i < 16; ++i) pinned_[i] = i;
  }
  void TearDown() override {
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(other_), cudaSuccess);
    EXPECT_EQ(cudaFree(device_), cudaSuccess);
    EXPECT_EQ(cudaFreeHost(pinned_), cudaSuccess);
    cudaGetLastError();
  }

  // device_[i] = value, on a stream.
  cudaError_t Fill(int value, cudaStream_t stream) {
    return Queue(
        1, 16, 0, [p = device_, value] { p[threadIdx.x] = value; }, stream);
  }
  cudaError_t Sync() { return cudaStreamSynchronize(stream_); }

  cudaStream_t stream_ = nullptr;
  cudaStream_t other_ = nullptr;
  int* device_ = nullptr;
  int* pinned_ = nullptr;
};

// ---- Streams

TEST_F(RuntimeTest, WorkWaitsUntilSomeoneWaitsForIt) {
  ASSERT_EQ(Fill(7, stream_), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(pinned_, device_, 64, cudaMemcpyDeviceToHost, stream_), cudaSuccess);
  EXPECT_EQ(device_[3], -1);  // contents of new memory
  EXPECT_EQ(pinned_[3], 3);
  ASSERT_EQ(cudaStreamSynchronize(other_), cudaSuccess);
  EXPECT_EQ(device_[3], -1);
  ASSERT_EQ(Sync(), cudaSuccess);
  EXPECT_EQ(pinned_[3], 7);
}

TEST_F(RuntimeTest, EagerModeDoesNotWait) {
  const WithOptions eager([](emulator::Options& options) { options.eager = true; });
  ASSERT_EQ(Fill(7, stream_), cudaSuccess);
  EXPECT_EQ(device_[3], 7);
}

TEST_F(RuntimeTest, PinnedMemoryIsReadLatePageableByTheCall) {
  int pageable[16] = {5, 6};
  ASSERT_EQ(cudaMemcpyAsync(device_, pinned_, 4, cudaMemcpyHostToDevice, stream_), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(device_ + 1, pageable, 4, cudaMemcpyHostToDevice, stream_), cudaSuccess);
  pinned_[0] = 100;
  pageable[0] = 100;
  ASSERT_EQ(Sync(), cudaSuccess);
  EXPECT_EQ(device_[0], 100);
  EXPECT_EQ(device_[1], 5);
  // A copy to pageable memory is done when the call returns, and so is all earlier work.
  ASSERT_EQ(Fill(9, stream_), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(pageable, device_, 64, cudaMemcpyDeviceToHost, stream_), cudaSuccess);
  EXPECT_EQ(pageable[15], 9);
}

TEST_F(RuntimeTest, StreamsAreOrderedByEventsAlone) {
  cudaEvent_t event;
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  for (const bool wait : {false, true}) {
    ASSERT_EQ(Fill(1, stream_), cudaSuccess);
    ASSERT_EQ(Sync(), cudaSuccess);
    ASSERT_EQ(Fill(2, stream_), cudaSuccess);
    ASSERT_EQ(cudaEventRecord(event, stream_), cudaSuccess);
    ASSERT_EQ(Fill(3, stream_), cudaSuccess);
    if (wait) {
      ASSERT_EQ(cudaStreamWaitEvent(other_, event), cudaSuccess);
    }
    ASSERT_EQ(cudaMemcpyAsync(pinned_, device_, 64, cudaMemcpyDefault, other_), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(other_), cudaSuccess);
    EXPECT_EQ(pinned_[0], wait ? 2 : 1);
    ASSERT_EQ(Sync(), cudaSuccess);
  }
  ASSERT_EQ(Fill(4, stream_), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(event, stream_), cudaSuccess);
  ASSERT_EQ(cudaEventSynchronize(event), cudaSuccess);
  EXPECT_EQ(device_[0], 4);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
}

TEST_F(RuntimeTest, QueriesLetTheDeviceGoOn) {
  cudaEvent_t event;
  ASSERT_EQ(cudaEventCreate(&event), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);  // never recorded
  for (int i = 0; i < 3; ++i) ASSERT_EQ(Fill(i, stream_), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(event, stream_), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
  int polls = 1;
  while (cudaEventQuery(event) == cudaErrorNotReady) ++polls;
  EXPECT_EQ(polls, 3);
  EXPECT_EQ(cudaStreamQuery(stream_), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
}

TEST_F(RuntimeTest, TheLegacyStreamWaitsForBlockingOnesAndTheyForIt) {
  cudaStream_t blocking;
  ASSERT_EQ(cudaStreamCreate(&blocking), cudaSuccess);
  ASSERT_EQ(Fill(1, blocking), cudaSuccess);
  int got = 0;
  ASSERT_EQ(cudaMemcpy(&got, device_, 4, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(got, 1);
  ASSERT_EQ(Fill(2, stream_), cudaSuccess);  // not blocking
  ASSERT_EQ(cudaMemcpy(&got, device_, 4, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(got, 1);
  ASSERT_EQ(Sync(), cudaSuccess);
  ASSERT_EQ(Fill(3, nullptr), cudaSuccess);
  ASSERT_EQ(Queue(
                1, 1, 0, [p = device_] { ++*p; }, blocking),
            cudaSuccess);
  ASSERT_EQ(cudaStreamDestroy(blocking), cudaSuccess);
  EXPECT_EQ(device_[0], 4);
}

TEST_F(RuntimeTest, HostFunctionsAndFillsAreInOrder) {
  ASSERT_EQ(cudaMemsetAsync(device_, 1, 64, stream_), cudaSuccess);
  ASSERT_EQ(cudaLaunchHostFunc(
                stream_, [](void* p) { *static_cast<int*>(p) += 1; }, device_),
            cudaSuccess);
  ASSERT_EQ(Sync(), cudaSuccess);
  EXPECT_EQ(device_[0], 0x01010102);
  EXPECT_EQ(device_[15], 0x01010101);
}

// ---- Graphs

TEST_F(RuntimeTest, GraphsCopyArgumentsAndReadMemoryAtEachLaunch) {
  int* const total = device_ + 1;
  ASSERT_EQ(cudaMemset(device_, 0, 64), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  int argument = 10;
  ASSERT_EQ(Queue(
                1, 1, 0, [argument, p = device_, total] { *total += *p + argument; }, stream_),
            cudaSuccess);
  argument = 1000;
  ASSERT_EQ(cudaMemcpyAsync(pinned_, device_, 64, cudaMemcpyDeviceToHost, stream_), cudaSuccess);
  cudaGraph_t graph;
  ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  size_t nodes = 0;
  EXPECT_EQ(cudaGraphGetNodes(graph, nullptr, &nodes), cudaSuccess);
  EXPECT_EQ(nodes, 2u);
  cudaGraphExec_t exec;
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph), cudaSuccess);
  ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(*total, 0);  // captured, not run
  for (int i = 1; i <= 3; ++i) {
    ASSERT_EQ(Queue(
                  1, 1, 0, [p = device_, i] { *p = i; }, stream_),
              cudaSuccess);
    ASSERT_EQ(cudaGraphLaunch(exec, stream_), cudaSuccess);
  }
  ASSERT_EQ(Sync(), cudaSuccess);
  EXPECT_EQ(pinned_[1], 3 * 10 + 1 + 2 + 3);
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
}

TEST_F(RuntimeTest, BranchesOfACaptureRunInAnyOrder) {
  cudaEvent_t fork, join;
  ASSERT_EQ(cudaEventCreate(&fork), cudaSuccess);
  ASSERT_EQ(cudaEventCreate(&join), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), cudaSuccess);
  int* const p = device_;
  ASSERT_EQ(Queue(
                1, 1, 0, [p] { p[0] = p[1] = 0; }, stream_),
            cudaSuccess);
  ASSERT_EQ(cudaEventRecord(fork, stream_), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(other_, fork), cudaSuccess);
  // Which of the two branches came first shows in p[1]; that both came before the end in p[2].
  ASSERT_EQ(Queue(
                1, 1, 0, [p] { p[1] = 10 * p[1] + 1, ++p[0]; }, stream_),
            cudaSuccess);
  ASSERT_EQ(Queue(
                1, 1, 0, [p] { p[1] = 10 * p[1] + 2, ++p[0]; }, other_),
            cudaSuccess);
  ASSERT_EQ(cudaEventRecord(join, other_), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(stream_, join), cudaSuccess);
  ASSERT_EQ(Queue(
                1, 1, 0, [p] { p[2] = p[0]; }, stream_),
            cudaSuccess);
  cudaStreamCaptureStatus status;
  EXPECT_EQ(cudaStreamIsCapturing(other_, &status), cudaSuccess);
  EXPECT_EQ(status, cudaStreamCaptureStatusActive);
  EXPECT_EQ(cudaEventSynchronize(join), cudaErrorCapturedEvent);
  cudaGraph_t graph;
  ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  EXPECT_EQ(cudaStreamIsCapturing(other_, &status), cudaSuccess);
  EXPECT_EQ(status, cudaStreamCaptureStatusNone);
  cudaGraphExec_t exec;
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph), cudaSuccess);
  int first_branch_first = 0;
  for (int i = 0; i < 40; ++i) {
    ASSERT_EQ(cudaGraphLaunch(exec, stream_), cudaSuccess);
    ASSERT_EQ(Sync(), cudaSuccess);
    EXPECT_EQ(p[2], 2);
    first_branch_first += p[1] == 12;
  }
  EXPECT_GT(first_branch_first, 0);
  EXPECT_LT(first_branch_first, 40);
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(fork), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(join), cudaSuccess);
}

TEST_F(RuntimeTest, UnjoinedCapturesFail) {
  cudaEvent_t fork;
  ASSERT_EQ(cudaEventCreate(&fork), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), cudaSuccess);
  ASSERT_EQ(Fill(1, stream_), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(fork, stream_), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(other_, fork), cudaSuccess);
  ASSERT_EQ(Fill(2, other_), cudaSuccess);
  cudaGraph_t graph;
  EXPECT_EQ(cudaStreamEndCapture(other_, &graph), cudaErrorStreamCaptureUnmatched);
  EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaErrorStreamCaptureUnjoined);
  EXPECT_EQ(graph, nullptr);
  EXPECT_EQ(cudaEventDestroy(fork), cudaSuccess);
}

TEST_F(RuntimeTest, ForbiddenCallsInvalidateACapture) {
  cudaEvent_t before;
  ASSERT_EQ(cudaEventCreate(&before), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(before, other_), cudaSuccess);
  void* memory = nullptr;
  int got = 0;
  const std::vector<std::pair<std::function<cudaError_t()>, cudaError_t>> calls = {
      {[&] { return Sync(); }, cudaErrorStreamCaptureUnsupported},
      {[&] { return cudaStreamQuery(stream_); }, cudaErrorStreamCaptureUnsupported},
      {[&] { return cudaDeviceSynchronize(); }, cudaErrorStreamCaptureUnsupported},
      {[&] { return cudaMalloc(&memory, 16); }, cudaErrorStreamCaptureUnsupported},
      {[&] { return cudaMemcpy(&got, device_, 4, cudaMemcpyDefault); }, cudaErrorStreamCaptureUnsupported},
      {[&] { return cudaStreamWaitEvent(stream_, before); }, cudaErrorStreamCaptureIsolation},
  };
  for (const auto& [call, error] : calls) {
    ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    EXPECT_EQ(call(), error);
    EXPECT_EQ(cudaGetLastError(), error);
    EXPECT_EQ(Fill(1, stream_), cudaErrorStreamCaptureInvalidated);
    cudaGraph_t graph;
    EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaErrorStreamCaptureInvalidated);
    EXPECT_EQ(graph, nullptr);
    EXPECT_EQ(Fill(1, stream_), cudaSuccess);
    EXPECT_EQ(Sync(), cudaSuccess);
  }
  EXPECT_EQ(cudaEventDestroy(before), cudaSuccess);
  EXPECT_EQ(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeRelaxed), cudaErrorStreamCaptureUnsupported);
}

// ---- Refusals

TEST_F(RuntimeTest, LaunchesThatAnH100Refuses) {
  const auto nothing = [] {};
  EXPECT_EQ(Queue(1, 1025, 0, nothing, stream_), cudaErrorInvalidConfiguration);
  EXPECT_EQ(Queue(1, dim3(1, 1, 65), 0, nothing, stream_), cudaErrorInvalidConfiguration);
  EXPECT_EQ(Queue(1, 0, 0, nothing, stream_), cudaErrorInvalidConfiguration);
  EXPECT_EQ(Queue(dim3(1, 65536), 1, 0, nothing, stream_), cudaErrorInvalidConfiguration);
  EXPECT_EQ(Queue(0, 1, 0, nothing, stream_), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  const void* const function = reinterpret_cast<const void*>(&TestKernel);
  const int opted = 227 << 10;
  EXPECT_EQ(Queue(1, 1, (48 << 10) + 1, nothing, stream_), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, opted + 1),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, opted), cudaSuccess);
  EXPECT_EQ(Queue(1, 1, opted, nothing, stream_), cudaSuccess);
  EXPECT_EQ(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, 48 << 10),
            cudaSuccess);
  cudaStream_t gone = stream_;
  ASSERT_EQ(cudaStreamCreate(&gone), cudaSuccess);
  ASSERT_EQ(cudaStreamDestroy(gone), cudaSuccess);
  EXPECT_EQ(Queue(1, 1, 0, nothing, gone), cudaErrorInvalidResourceHandle);
}

TEST_F(RuntimeTest, CopiesMustFitTheirMemory) {
  int host[32] = {};
  EXPECT_EQ(cudaMemcpyAsync(device_, host, 65, cudaMemcpyHostToDevice, stream_), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(device_ + 15, host, 8, cudaMemcpyHostToDevice, stream_), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(host, host + 16, 8, cudaMemcpyHostToDevice, stream_), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(device_, host, 8, cudaMemcpyDeviceToHost, stream_), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(host, device_, 8, cudaMemcpyDeviceToDevice, stream_), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemsetAsync(host, 0, 8, stream_), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemsetAsync(device_ + 1, 0, 64, stream_), cudaErrorInvalidValue);
  // Memory of another allocator, once registered.
  emulator::AdoptDeviceMemory(host, sizeof host);
  EXPECT_EQ(cudaMemcpyAsync(host, pinned_, 64, cudaMemcpyHostToDevice, stream_), cudaSuccess);
  emulator::ForgetDeviceMemory(host, sizeof host);
  EXPECT_EQ(host[5], 5);
}

TEST_F(RuntimeTest, Memory) {
  const WithOptions small([](emulator::Options& options) { options.device_bytes = 1 << 20; });
  size_t free_before, free_after, total;
  ASSERT_EQ(cudaMemGetInfo(&free_before, &total), cudaSuccess);
  EXPECT_EQ(total, 1u << 20);
  float* data;
  ASSERT_EQ(cudaMalloc(&data, 1000), cudaSuccess);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % 256, 0u);
  EXPECT_TRUE(std::isnan(data[249]));
  ASSERT_EQ(cudaMemGetInfo(&free_after, &total), cudaSuccess);
  EXPECT_EQ(free_before - free_after, 1000u);
  EXPECT_EQ(cudaFree(data + 1), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFreeHost(data), cudaErrorInvalidValue);
  float* too_large = data;
  EXPECT_EQ(cudaMalloc(&too_large, 1 << 20), cudaErrorMemoryAllocation);
  EXPECT_EQ(too_large, nullptr);

  cudaPointerAttributes attributes;
  ASSERT_EQ(cudaPointerGetAttributes(&attributes, data + 5), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeDevice);
  ASSERT_EQ(cudaPointerGetAttributes(&attributes, pinned_), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeHost);
  ASSERT_EQ(cudaPointerGetAttributes(&attributes, &data), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeUnregistered);

  cudaIpcMemHandle_t handle;
  void* opened = nullptr;
  ASSERT_EQ(cudaIpcGetMemHandle(&handle, data + 3), cudaSuccess);
  // A second process can open the handle, the exporting process cannot; emulator_ipc_test opens a handle in a
  // second process.
  EXPECT_EQ(cudaIpcOpenMemHandle(&opened, handle, cudaIpcMemLazyEnablePeerAccess),
            cudaErrorDeviceUninitialized);
  EXPECT_EQ(cudaIpcGetMemHandle(&handle, pinned_), cudaErrorInvalidValue);
  ASSERT_EQ(cudaFree(data), cudaSuccess);
  EXPECT_EQ(cudaFree(data), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(nullptr), cudaSuccess);
}

// As a driver maps memory: side by side in several calls, and unmapped in parts.
TEST_F(RuntimeTest, AdoptedMemoryIsForgottenInParts) {
  std::vector<int> memory(48);
  int* const data = memory.data();
  const auto copy = [&](int first, int count) {
    return cudaMemcpyAsync(data + first, device_, count * sizeof(int), cudaMemcpyDeviceToDevice, stream_);
  };
  emulator::AdoptDeviceMemory(data, 64);
  emulator::AdoptDeviceMemory(data + 16, 64);
  EXPECT_EQ(copy(8, 16), cudaSuccess);
  EXPECT_EQ(copy(24, 16), cudaErrorInvalidValue) << "beyond both";
  ASSERT_EQ(Fill(3, stream_), cudaSuccess);
  EXPECT_EQ(copy(12, 8), cudaSuccess);
  emulator::ForgetDeviceMemory(data + 12, 32);
  EXPECT_EQ(memory[12], 3) << "what was queued has run";
  EXPECT_EQ(copy(0, 12), cudaSuccess);
  EXPECT_EQ(copy(20, 12), cudaSuccess);
  for (const int first : {4, 12, 19}) EXPECT_EQ(copy(first, 9), cudaErrorInvalidValue) << first;
  emulator::AdoptDeviceMemory(data + 12, 32);
  EXPECT_EQ(copy(4, 16), cudaSuccess);
  emulator::ForgetDeviceMemory(data, 192);
  for (const int first : {0, 12, 31}) EXPECT_EQ(copy(first, 1), cudaErrorInvalidValue) << first;
  EXPECT_EQ(Sync(), cudaSuccess);
}

TEST_F(RuntimeTest, FreeWaitsForTheDevice) {
  int* data;
  ASSERT_EQ(cudaMalloc(&data, 4), cudaSuccess);
  ASSERT_EQ(Queue(
                1, 1, 0, [data, p = device_] { *p = *data = 8; }, stream_),
            cudaSuccess);
  ASSERT_EQ(cudaFree(data), cudaSuccess);
  EXPECT_EQ(device_[0], 8);
}

TEST_F(RuntimeTest, TheChip) {
  int value = 0;
  ASSERT_EQ(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 0), cudaSuccess);
  EXPECT_EQ(value, 132);
  ASSERT_EQ(cudaDeviceGetAttribute(&value, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0), cudaSuccess);
  EXPECT_EQ(value, 232448);
  EXPECT_EQ(cudaDeviceGetAttribute(&value, cudaDevAttrL2CacheSize, 8), cudaErrorInvalidDevice);
  EXPECT_STREQ(cudaGetErrorName(cudaErrorInvalidDevice), "cudaErrorInvalidDevice");
  EXPECT_STREQ(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory");
}

}  // namespace
}  // namespace somnus::cuda_emulated

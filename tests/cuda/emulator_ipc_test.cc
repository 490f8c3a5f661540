// Device memory of one process, mapped by a second process.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/emulator/runtime.h"
#include "tests/cuda/emulator_util.h"

namespace somnus::cuda_emulated {
namespace {

constexpr size_t kPage = size_t{2} << 20;

// A process that exports memory of `bytes` bytes full of 7s and tells the first byte when asked.
class Exporter {
 public:
  explicit Exporter(size_t bytes) {
    EXPECT_EQ(pipe(questions_), 0);
    EXPECT_EQ(pipe(answers_), 0);
    pid_ = fork();
    if (pid_ == 0) Serve(bytes);
    close(questions_[0]);
    close(answers_[1]);  // so that the end of the child ends the answers
    EXPECT_EQ(read(answers_[0], &handle_, sizeof handle_), static_cast<ssize_t>(sizeof handle_));
  }
  ~Exporter() {
    Kill();
    close(questions_[1]);
    close(answers_[0]);
  }

  const cudaIpcMemHandle_t& handle() const { return handle_; }
  char FirstByte() {
    char byte = 0;
    EXPECT_EQ(write(questions_[1], &byte, 1), 1);
    EXPECT_EQ(read(answers_[0], &byte, 1), 1);
    return byte;
  }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

 private:
  [[noreturn]] void Serve(size_t bytes) {
    char* data = nullptr;
    cudaIpcMemHandle_t handle;
    bool ok = cudaMalloc(&data, bytes) == cudaSuccess && cudaMemset(data, 7, bytes) == cudaSuccess &&
              cudaIpcGetMemHandle(&handle, data) == cudaSuccess && cudaDeviceSynchronize() == cudaSuccess;
    ok = ok && write(answers_[1], &handle, sizeof handle) == static_cast<ssize_t>(sizeof handle);
    for (char byte = 0; ok && read(questions_[0], &byte, 1) == 1;) ok = write(answers_[1], data, 1) == 1;
    _exit(1);
  }

  int questions_[2], answers_[2];
  pid_t pid_ = 0;
  cudaIpcMemHandle_t handle_;
};

TEST(EmulatorIpc, BothProcessesSeeOneMemory) {
  Exporter exporter(kPage);
  char* mapped = nullptr;
  ASSERT_EQ(cudaIpcOpenMemHandle(reinterpret_cast<void**>(&mapped), exporter.handle(), 0), cudaSuccess);
  char got[16] = {};
  ASSERT_EQ(cudaMemcpy(got, mapped + kPage - 16, 16, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(got[15], 7);
  ASSERT_EQ(
      RunKernel({1}, {1}, 0, [mapped] { StRelease<Scope::kSys>(reinterpret_cast<uint32_t*>(mapped), 9u); }),
      cudaSuccess);
  EXPECT_EQ(exporter.FirstByte(), 9);
  // The memory is not the host's, and the memory's end is known.
  EXPECT_EQ(cudaMemcpy(mapped, got, 16, cudaMemcpyHostToHost), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(got, mapped + kPage - 8, 16, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(mapped), cudaErrorInvalidValue);
  EXPECT_EQ(cudaIpcCloseMemHandle(mapped), cudaSuccess);
}

TEST(EmulatorIpc, OpenedTwiceIsOneMappingClosedTwice) {
  Exporter exporter(kPage);
  void *first = nullptr, *second = nullptr;
  ASSERT_EQ(cudaIpcOpenMemHandle(&first, exporter.handle(), 0), cudaSuccess);
  ASSERT_EQ(cudaIpcOpenMemHandle(&second, exporter.handle(), 0), cudaSuccess);
  EXPECT_EQ(first, second);
  EXPECT_EQ(cudaIpcCloseMemHandle(first), cudaSuccess);
  EXPECT_EQ(*static_cast<char*>(second), 7);
  EXPECT_EQ(cudaIpcCloseMemHandle(second), cudaSuccess);
  EXPECT_EQ(cudaIpcCloseMemHandle(second), cudaErrorInvalidValue);
}

TEST(EmulatorIpc, MemoryOutlivesItsKilledOwnerAndCannotBeOpenedThen) {
  Exporter exporter(2 * kPage);
  void* mapped = nullptr;
  ASSERT_EQ(cudaIpcOpenMemHandle(&mapped, exporter.handle(), 0), cudaSuccess);
  exporter.Kill();
  EXPECT_EQ(static_cast<char*>(mapped)[2 * kPage - 1], 7);
  EXPECT_EQ(cudaIpcCloseMemHandle(mapped), cudaSuccess);
  EXPECT_EQ(cudaIpcOpenMemHandle(&mapped, exporter.handle(), 0), cudaErrorInvalidResourceHandle);
}

TEST(EmulatorIpc, SmallMemoryIsNotShown) {
  Exporter exporter(4096);
  void* mapped = nullptr;
  EXPECT_EQ(cudaIpcOpenMemHandle(&mapped, exporter.handle(), 0), cudaErrorInvalidResourceHandle);
}

TEST(EmulatorIpc, WholePagesAreFreedAndPoisonedAsOthersAre) {
  unsigned char* data = nullptr;
  size_t before = 0, total = 0, after = 0;
  ASSERT_EQ(cudaMemGetInfo(&before, &total), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&data, kPage), cudaSuccess);
  EXPECT_EQ(data[kPage - 1], 0xff);
  EXPECT_EQ(cudaFree(data), cudaSuccess);
  ASSERT_EQ(cudaMemGetInfo(&after, &total), cudaSuccess);
  EXPECT_EQ(before, after);
}

}  // namespace
}  // namespace somnus::cuda_emulated

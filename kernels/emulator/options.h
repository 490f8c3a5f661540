#pragma once
// Settings of the emulator, of the whole process: how tests choose another schedule or another machine.

#include <cstdint>

namespace somnus::cuda_emulated::emulator {

struct Options {
  // Of every scheduling choice: the order of a kernel's blocks and threads, how many blocks run at once, the
  // order of a graph's nodes. The same seed and the same calls give the same schedule (for one host thread).
  uint64_t seed = 1;
  // Run an op when it is queued instead of when someone waits for it.
  bool eager = false;
  int driver_version = 13000;  // the newest CUDA that the driver knows; 0: there is no driver
  int num_devices = 8;
  bool has_matrix_library = true;  // stands for cuBLASLt
  bool has_nvlink = true;          // between the devices; else PCIe
  // Memory of another process is mapped, but reads and writes do not reach it: what broken systems do.
  bool broken_peer_memory = false;
  int num_sms = 132;  // an H100 SXM
  int64_t device_bytes = int64_t{80} << 30;
  int64_t graph_bytes = 0;  // of them, that a graph takes as long as it can be launched
  // Threads that do nothing but spin for this long, with nothing left that could be started, are a deadlock.
  // Only spins that give way are seen (LdAcquire, atomics, NanoSleep): a loop over plain loads never ends
  // here.
  int64_t spin_limit_ms = 20000;
};

// Takes effect for what is queued or started from now on. Thread safe.
void SetOptions(const Options& options);
Options GetOptions();

// Memory that others hand out as the device's (an allocator with a driver of its own): copies accept it. It
// must not overlap with what is known; Forget takes the same address.
void AdoptDeviceMemory(void* data, int64_t bytes);
void ForgetDeviceMemory(void* data);

// Such an allocator's physical memory: what it takes the device has no more. False: there is not so much.
bool TakeDeviceMemory(int64_t bytes);
void ReturnDeviceMemory(int64_t bytes);

}  // namespace somnus::cuda_emulated::emulator

#pragma once
// Settings of the emulator, of the whole process, by which tests choose a schedule and a machine.

#include <cstdint>

namespace somnus::cuda_emulated::emulator {

struct Options {
  // Decides every scheduling choice: the order of a kernel's blocks and threads, how many blocks run at once,
  // the order of a graph's nodes. The same seed and the same calls give the same schedule (for one host
  // thread).
  uint64_t seed = 1;
  // Run an op when queued instead of when someone waits.
  bool eager = false;
  int driver_version = 13000;  // the newest CUDA that the driver knows; 0: there is no driver
  int num_devices = 8;
  bool has_matrix_library = true;  // stands for cuBLASLt
  bool has_nvlink = true;          // between the devices; else PCIe
  // Memory of another process is mapped, but reads and writes do not reach that memory, as on broken systems.
  bool broken_peer_memory = false;
  int num_sms = 132;  // an H100 SXM
  int compute_capability = 90;
  int64_t device_bytes = int64_t{80} << 30;
  int64_t graph_bytes = 0;  // of device_bytes, taken by a graph until its executable is destroyed
  // Threads that do nothing but spin for this long, with nothing left that could be started, are a deadlock.
  // Only spins that give way are seen (LdAcquire, atomics, NanoSleep): a loop over plain loads never ends
  // here.
  int64_t spin_limit_ms = 20000;
  // Races between accesses of a kernel's threads end the process (race_detector.h). Takes most of the time.
  bool find_races = true;
};

// Takes effect for everything queued or started from now on. Thread safe.
void SetOptions(const Options& options);
Options GetOptions();

// Registers memory that another allocator (with a driver of its own) hands out as the device's, so that
// copies accept it. The memory must not overlap with registered memory. Forget takes any part of registered
// memory, after waiting for the device, and ignores memory that was never registered.
void AdoptDeviceMemory(void* data, int64_t bytes);
void ForgetDeviceMemory(void* data, int64_t bytes);

// Memory that threads may write together on purpose, such as the null block of a KV cache, which the rows
// that pad a batch share: races there are passed over. Replaces an earlier range that begins at `data`.
// Ranges do not overlap.
void PassOverRaces(const void* data, int64_t bytes);
// Races are found again in the ranges of PassOverRaces that begin in this memory. cudaFree does the same for
// the freed memory.
void FindRacesAgain(const void* data, int64_t bytes);

// Such an allocator's physical memory counts as used from Take to Return. Take returns false when the device
// has not as much left.
bool TakeDeviceMemory(int64_t bytes);
void ReturnDeviceMemory(int64_t bytes);

}  // namespace somnus::cuda_emulated::emulator

#pragma once
// A VmmDriver over plain memory that fails on command, keeps count of everything it handed out, and records
// every call that would be an error on a real device (violations). The driver's calls are thread safe; the
// tests' own calls are not, while a driver's call runs.

#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "allocator/vmm_driver.h"

namespace somnus {

class FakeVmmDriver : public VmmDriver {
 public:
  static constexpr int64_t kUnit = 64;

  // The n-th call from now on that can fail (1 is the next) returns Internal, and so do the `times` - 1 calls
  // after it. 0: none does.
  void FailAt(int n, int times = 1) {
    fail_in_ = n;
    fail_times_ = times;
  }
  bool failed() const { return failed_; }
  void ClearFailed() { failed_ = false; }
  // `callback` runs within every call that can fail, before the call does anything.
  void OnCall(std::function<void()> callback) { on_call_ = std::move(callback); }
  // How many physical bytes Create hands out in all.
  void SetCapacity(int64_t bytes) { capacity_ = bytes; }

  int64_t live_bytes() const {
    int64_t sum = 0;
    for (const auto& [handle, memory] : handles_) sum += memory.bytes.size();
    return sum;
  }
  int64_t host_bytes() const { return host_bytes_; }
  int64_t reserved_bytes() const {
    int64_t sum = 0;
    for (const auto& [address, bytes] : ranges_) sum += bytes;
    return sum;
  }
  const std::vector<std::string>& violations() const { return violations_; }
  const std::vector<std::string>& calls() const { return calls_; }
  void ClearCalls() { calls_.clear(); }

  // Fill and Holds access memory as code on the device would.
  void Fill(void* address, int64_t bytes, char value) {
    for (int64_t i = 0; i < bytes; ++i) {
      if (char* byte = At(Number(address) + i, true)) *byte = value;
    }
  }
  bool Holds(void* address, int64_t bytes, char value) {
    for (int64_t i = 0; i < bytes; ++i) {
      const char* byte = At(Number(address) + i, true);
      if (byte == nullptr || *byte != value) return false;
    }
    return true;
  }

  int64_t Granularity() const override { return kUnit; }
  int64_t ChunkBytes() const override { return 2 * kUnit; }
  absl::StatusOr<int64_t> TotalBytes() override { return capacity_; }
  absl::StatusOr<int64_t> AvailableBytes() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return capacity_ - live_bytes();
  }

  absl::StatusOr<void*> Reserve(int64_t bytes) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (Fails("Reserve")) return Broken();
    Expect(bytes > 0 && bytes % kUnit == 0, "Reserve of odd size");
    const int64_t address = next_address_;
    next_address_ += bytes + kUnit;
    ranges_[address] = bytes;
    return reinterpret_cast<void*>(address);
  }
  absl::Status FreeAddress(void* address, int64_t bytes) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (Fails("FreeAddress")) return Broken();
    const auto it = ranges_.find(Number(address));
    Expect(it != ranges_.end() && it->second == bytes, "FreeAddress of no range");
    for (const auto& [at, handle] : maps_) {
      Expect(at < Number(address) || at >= Number(address) + bytes, "FreeAddress of a mapped range");
    }
    if (it != ranges_.end()) ranges_.erase(it);
    return absl::OkStatus();
  }
  absl::StatusOr<Handle> Create(int64_t bytes) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (Fails("Create")) return Broken();
    if (bytes > capacity_ - live_bytes()) return absl::ResourceExhaustedError("out of device memory");
    // New memory is not zero, but has old contents.
    handles_[next_handle_].bytes.assign(bytes, static_cast<char>(0x5a));
    Count(bytes);
    return next_handle_++;
  }
  absl::Status Release(Handle handle) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (Fails("Release")) return Broken();
    Expect(handles_.count(handle) == 1, "Release of no handle");
    for (const auto& [at, mapped] : maps_) Expect(mapped != handle, "Release while mapped");
    handles_.erase(handle);
    return absl::OkStatus();
  }
  absl::Status Map(void* address, int64_t bytes, Handle handle) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (Fails("Map")) return Broken();
    Expect(handles_.count(handle) == 1 && static_cast<int64_t>(handles_[handle].bytes.size()) == bytes,
           "Map of no handle");
    Expect(At(Number(address), false) == nullptr, "Map over a mapping");
    maps_[Number(address)] = handle;
    handles_[handle].open = false;
    return absl::OkStatus();
  }
  absl::Status Unmap(void* address, int64_t bytes) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (Fails("Unmap")) return Broken();
    const int64_t end = Number(address) + bytes;
    int64_t at = Number(address);
    for (auto it = maps_.find(at); it != maps_.end() && it->first == at && at < end; it = maps_.erase(it)) {
      at += static_cast<int64_t>(handles_[it->second].bytes.size());
    }
    Expect(at == end, "Unmap of what whole mappings do not fill");
    return absl::OkStatus();
  }
  absl::Status SetAccess(void* address, int64_t bytes) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (Fails("SetAccess")) return Broken();
    for (int64_t at = Number(address); at < Number(address) + bytes; at += kUnit) {
      Expect(At(at, false) != nullptr, "SetAccess of an unmapped range");
    }
    for (auto& [at, handle] : maps_) {
      if (at >= Number(address) && at < Number(address) + bytes) handles_[handle].open = true;
    }
    return absl::OkStatus();
  }
  absl::StatusOr<void*> AllocateHost(int64_t bytes) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (Fails("AllocateHost")) return Broken();
    host_bytes_ += bytes;
    return new char[bytes];
  }
  void FreeHost(void* data, int64_t bytes) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    host_bytes_ -= bytes;
    delete[] static_cast<char*>(data);
  }
  absl::Status CopyToHost(void* host, const void* device, int64_t bytes) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (Fails("CopyToHost")) return Broken();
    for (int64_t i = 0; i < bytes; ++i) {
      if (const char* byte = At(Number(device) + i, true)) static_cast<char*>(host)[i] = *byte;
    }
    Count(bytes);
    return absl::OkStatus();
  }
  absl::Status CopyFromHost(void* device, const void* host, int64_t bytes) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (Fails("CopyFromHost")) return Broken();
    for (int64_t i = 0; i < bytes; ++i) {
      if (char* byte = At(Number(device) + i, true)) *byte = static_cast<const char*>(host)[i];
    }
    Count(bytes);
    return absl::OkStatus();
  }
  absl::Status Synchronize() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return Fails("Synchronize") ? Broken() : absl::OkStatus();
  }

 private:
  struct Memory {
    std::string bytes;
    bool open = false;
  };

  static int64_t Number(const void* address) { return reinterpret_cast<int64_t>(address); }
  static absl::Status Broken() { return absl::InternalError("made to fail"); }
  void Expect(bool good, const std::string& text) {
    if (!good) violations_.push_back(text);
  }
  bool Fails(const std::string& call) {
    calls_.push_back(call);
    if (on_call_) on_call_();
    if (fail_in_ == 0 || --fail_in_ != 0) return false;
    if (--fail_times_ > 0) fail_in_ = 1;
    return failed_ = true;
  }
  // Returns the byte at an address, nullptr where nothing is mapped. With `access` that is a violation, and
  // so is memory that SetAccess has not opened.
  char* At(int64_t address, bool access) {
    auto it = maps_.upper_bound(address);
    if (it != maps_.begin() && handles_.count((--it)->second) == 1) {
      Memory& memory = handles_[it->second];
      const int64_t offset = address - it->first;
      if (offset < static_cast<int64_t>(memory.bytes.size())) {
        if (access) Expect(memory.open, "access before SetAccess");
        return &memory.bytes[offset];
      }
    }
    if (access) Expect(false, "access to unmapped memory");
    return nullptr;
  }

  std::mutex mutex_;
  std::function<void()> on_call_;
  int fail_in_ = 0;
  int fail_times_ = 1;
  bool failed_ = false;
  int64_t capacity_ = int64_t{1} << 40;
  int64_t next_address_ = 1 << 20;
  Handle next_handle_ = 1;
  int64_t host_bytes_ = 0;
  std::map<int64_t, int64_t> ranges_;
  std::map<int64_t, Handle> maps_;
  std::map<Handle, Memory> handles_;
  std::vector<std::string> violations_, calls_;
};

}  // namespace somnus

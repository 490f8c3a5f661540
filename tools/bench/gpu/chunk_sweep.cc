#include "tools/bench/gpu/chunk_sweep.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"

namespace somnus {
namespace {

constexpr int kThreads[] = {1, 4};

// A thread's part of the addresses, and the pieces of memory there, of which the last may be smaller.
class Slice {
 public:
  Slice(VmmDriver& driver, char* address, int64_t bytes, int64_t piece_bytes)
      : driver_(driver), address_(address), bytes_(bytes), piece_bytes_(piece_bytes) {
    for (int64_t at = 0; at < bytes; at += piece_bytes) sizes_.push_back(std::min(piece_bytes, bytes - at));
  }
  // After an error, pieces may still be mapped or held.
  ~Slice() {
    for (size_t i = 0; i < mapped_; ++i) driver_.Unmap(At(i), sizes_[i]).IgnoreError();
    Release().IgnoreError();
  }
  Slice(const Slice&) = delete;

  absl::Status Create() { return driver_.CreateAll(sizes_, &handles_); }
  absl::Status Map() {
    for (; mapped_ < sizes_.size(); ++mapped_)
      RETURN_IF_ERROR(driver_.Map(At(mapped_), sizes_[mapped_], handles_[mapped_]));
    return absl::OkStatus();
  }
  absl::Status SetAccess() { return driver_.SetAccess(address_, bytes_); }
  absl::Status Unmap() {
    RETURN_IF_ERROR(driver_.Unmap(address_, bytes_));
    mapped_ = 0;
    return absl::OkStatus();
  }
  absl::Status Release() {
    std::vector<VmmDriver::Piece> pieces;
    for (size_t i = 0; i < handles_.size(); ++i) pieces.push_back({handles_[i], sizes_[i]});
    handles_.clear();
    std::vector<VmmDriver::Handle> kept;
    return driver_.ReleaseAll(pieces, &kept);
  }

 private:
  char* At(size_t piece) const { return address_ + static_cast<int64_t>(piece) * piece_bytes_; }

  VmmDriver& driver_;
  char* const address_;
  const int64_t bytes_;
  const int64_t piece_bytes_;
  std::vector<int64_t> sizes_;
  std::vector<VmmDriver::Handle> handles_;
  size_t mapped_ = 0;  // pieces, from the first on
};

class Sweep {
 public:
  Sweep(VmmDriver& driver, char* address, int64_t bytes, BenchReport& report)
      : driver_(driver), address_(address), bytes_(bytes), report_(report) {}

  // Adds the rows of a size: right after a release, and after the pause.
  absl::Status Measure(int64_t piece_bytes, int num_threads, absl::Duration pause) {
    for (const bool at_once : {true, false}) {
      const std::string name =
          absl::StrFormat("%s in pieces of %s, %d thread%s, %s", Size(bytes_), Size(piece_bytes), num_threads,
                          num_threads == 1 ? "" : "s", at_once ? "at once" : "after a pause");
      if (!report_.StartsOp("chunks", name)) continue;
      if (at_once) RETURN_IF_ERROR(ReleaseAMomentAgo());
      if (!at_once) absl::SleepFor(pause);
      ASSIGN_OR_RETURN(const Times times, Cycle(piece_bytes, num_threads));
      RETURN_IF_ERROR(report_.Row("chunks", name,
                                  {{"bytes", bytes_},
                                   {"piece_bytes", piece_bytes},
                                   {"threads", num_threads},
                                   {"pause_seconds", at_once ? 0 : absl::ToDoubleSeconds(pause)},
                                   {"create_ms", times.create},
                                   {"map_ms", times.map},
                                   {"access_ms", times.access},
                                   {"unmap_ms", times.unmap},
                                   {"release_ms", times.release}},
                                  absl::StrFormat("%-58s %8.1f %8.1f %8.1f %8.1f %8.1f", name, times.create,
                                                  times.map, times.access, times.unmap, times.release)));
    }
    return absl::OkStatus();
  }

 private:
  struct Times {  // milliseconds
    double create = 0, map = 0, access = 0, unmap = 0, release = 0;
  };
  using Slices = std::vector<std::unique_ptr<Slice>>;

  static std::string Size(int64_t bytes) {
    const bool gib = bytes % (int64_t{1} << 30) == 0;
    return absl::StrCat(bytes >> (gib ? 30 : 20), gib ? " GiB" : " MiB");
  }

  // The row before may have been left out, or may lie a pause back.
  absl::Status ReleaseAMomentAgo() { return Cycle(bytes_, 1).status(); }

  absl::StatusOr<Times> Cycle(int64_t piece_bytes, int num_threads) {
    const int64_t pieces = (bytes_ + piece_bytes - 1) / piece_bytes;
    const int64_t each = (pieces + num_threads - 1) / num_threads * piece_bytes;
    Slices slices;
    for (int64_t at = 0; at < bytes_; at += each)
      slices.push_back(
          std::make_unique<Slice>(driver_, address_ + at, std::min(each, bytes_ - at), piece_bytes));
    Times times;
    ASSIGN_OR_RETURN(times.create, Phase(slices, &Slice::Create));
    ASSIGN_OR_RETURN(times.map, Phase(slices, &Slice::Map));
    ASSIGN_OR_RETURN(times.access, Phase(slices, &Slice::SetAccess));
    ASSIGN_OR_RETURN(times.unmap, Phase(slices, &Slice::Unmap));
    ASSIGN_OR_RETURN(times.release, Phase(slices, &Slice::Release));
    return times;
  }

  // Returns the milliseconds until the last thread has ended.
  static absl::StatusOr<double> Phase(Slices& slices, absl::Status (Slice::*work)()) {
    std::vector<absl::Status> results(slices.size());
    const auto start = std::chrono::steady_clock::now();
    std::vector<std::thread> threads;
    for (size_t i = 1; i < slices.size(); ++i)
      threads.emplace_back([&, i] { results[i] = (*slices[i].*work)(); });
    results[0] = (*slices[0].*work)();
    for (std::thread& thread : threads) thread.join();
    const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - start;
    for (const absl::Status& result : results) RETURN_IF_ERROR(result);
    return time.count();
  }

  VmmDriver& driver_;
  char* const address_;
  const int64_t bytes_;
  BenchReport& report_;
};

}  // namespace

absl::Status SweepChunks(VmmDriver& driver, int64_t wanted_bytes, const ChunkSweep& sweep,
                         BenchReport& report) {
  const auto whole = [&](int64_t bytes) {
    const int64_t granularity = driver.Granularity();
    return std::max((bytes + granularity - 1) / granularity, int64_t{1}) * granularity;
  };
  const int64_t bytes = whole(wanted_bytes);
  ASSIGN_OR_RETURN(const int64_t available, driver.AvailableBytes());
  if (bytes > available)
    return absl::ResourceExhaustedError(absl::StrCat(
        "--chunk-sweep-bytes: ", bytes, " bytes are more than the device has left: ", available));
  ASSIGN_OR_RETURN(void* address, driver.Reserve(bytes));
  const absl::Cleanup free = [&] { driver.FreeAddress(address, bytes).IgnoreError(); };
  report.Text(
      absl::StrFormat("\n%-58s %8s %8s %8s %8s %8s", "ms to", "create", "map", "access", "unmap", "release"));
  Sweep all(driver, static_cast<char*>(address), bytes, report);
  for (const int64_t wanted : sweep.piece_bytes) {
    const int64_t piece_bytes = whole(wanted);
    if (piece_bytes >= bytes) continue;  // a single piece holds all bytes
    for (const int num_threads : kThreads)
      RETURN_IF_ERROR(all.Measure(piece_bytes, num_threads, sweep.pause));
  }
  return all.Measure(bytes, 1, sweep.pause);  // a single piece is work for a single thread
}

}  // namespace somnus

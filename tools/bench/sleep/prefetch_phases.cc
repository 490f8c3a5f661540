#include "tools/bench/sleep/prefetch_phases.h"

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "tools/bench/median.h"

namespace somnus {
namespace {

constexpr char kOther[] = "other";
// Longer than a model that has woken stays.
constexpr absl::Duration kStay = absl::Seconds(2);
// The length of the answer behind which weights are prefetched: some seconds.
constexpr int kTokensMeanwhile = 400;

void DropPagesOf(const std::filesystem::path& file) {
  const int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  close(fd);
}

// Drops the pages of a file, or of the files of a directory.
void DropPages(const std::string& model) {
  std::error_code error;
  if (!std::filesystem::is_directory(model, error)) return DropPagesOf(model);
  for (const auto& entry : std::filesystem::directory_iterator(model, error))
    if (entry.is_regular_file(error)) DropPagesOf(entry.path());
}

absl::StatusOr<double> ReadSeconds(const ServedEngine& engine) {
  return engine.Metric("somnus:wake_up_seconds_sum", "phase=\"read\"");
}

// Wakes the sleeping model; the model's file is on the disk alone. Returns the time that the wake-up took to
// read.
absl::StatusOr<double> WakeCold(const ServedEngineOptions& options, bool behind_another, int number,
                                ServedEngine* engine) {
  const std::string sleeps = number % 2 == 0 ? kOther : "", awake = number % 2 == 0 ? "" : kOther;
  absl::SleepFor(kStay);
  DropPages(options.model);
  ASSIGN_OR_RETURN(const double before, ReadSeconds(*engine));
  absl::Status answered;
  std::thread busy;
  if (behind_another) {
    busy = std::thread([&] { answered = engine->Answer(awake, kTokensMeanwhile); });
    // The request must be there before the other model's request.
    absl::SleepFor(absl::Milliseconds(200));
  }
  const absl::StatusOr<double> first_token = engine->FirstToken(sleeps);
  if (busy.joinable()) busy.join();
  RETURN_IF_ERROR(first_token.status());
  RETURN_IF_ERROR(answered);
  ASSIGN_OR_RETURN(const double after, ReadSeconds(*engine));
  return after - before;
}

}  // namespace

absl::Status MeasurePrefetch(const ServedEngineOptions& options, int64_t model_bytes, int turns,
                             PhaseTable* table) {
  const std::string section = absl::StrCat("two models, memory for one, no host memory, ", options.workers,
                                           options.workers == 1 ? " worker" : " workers");
  ServedEngineOptions two = options;
  two.flags.push_back(absl::StrCat("--model=", kOther, "=", options.model));
  two.flags.push_back(absl::StrCat("--device-memory-budget=", model_bytes * 5 / 4));
  two.flags.push_back("--no-elastic-kv-cache");  // or both would stay awake
  two.flags.push_back("--host-memory-budget=1");
  ASSIGN_OR_RETURN(const std::unique_ptr<ServedEngine> engine, ServedEngine::Start(two));
  // ServedEngine::Start has woken the first model.
  std::vector<double> cold, prefetched;
  for (int i = 0; i < 2 * turns; ++i) {
    ASSIGN_OR_RETURN(cold.emplace_back(), WakeCold(options, /*behind_another=*/false, i, engine.get()));
  }
  for (int i = 0; i < 2 * turns; ++i) {
    ASSIGN_OR_RETURN(prefetched.emplace_back(), WakeCold(options, /*behind_another=*/true, i, engine.get()));
  }
  table->Add(section, "checkpoint read by the wake-up, from the disk", 0, Median(cold));
  table->Add(section, "read after a prefetch behind the other model", 0, Median(prefetched));
  return absl::OkStatus();
}

}  // namespace somnus

#pragma once
// Looks at the server again and again, on a thread of its own, so that the screen answers while the server
// does not. All functions are thread safe.

#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/monotonic.h"
#include "tools/cli/server.h"
#include "tools/cli/top_screen.h"

namespace somnus::cli {

// One look. `before`: the look before, whose numbers the next rates are counted from; null: there was none.
// `model`: whose ranks are looked at; empty: the first one's. An error: the models cannot be seen at all.
absl::StatusOr<TopFacts> LookAt(const Server& server, const RequestQuestion& question, std::string model,
                                const TopFacts* before, absl::Duration passed);

class TopWatcher {
 public:
  TopWatcher(Server server, absl::Duration interval, TopFacts first);
  ~TopWatcher();
  TopWatcher(const TopWatcher&) = delete;
  TopWatcher& operator=(const TopWatcher&) = delete;

  // A descriptor that can be read when there is a newer look.
  int news() const { return news_[0]; }
  // The newest look; news() is silent afterwards.
  TopFacts Take();
  // Sets the question of the next look at the server, which begins at once.
  void Ask(const RequestQuestion& question, const std::string& model);

 private:
  void Watch();

  const Server server_;
  const absl::Duration interval_;
  int news_[2];
  absl::Mutex mutex_;
  TopFacts latest_ ABSL_GUARDED_BY(mutex_);
  RequestQuestion question_ ABSL_GUARDED_BY(mutex_);
  std::string model_ ABSL_GUARDED_BY(mutex_);
  bool is_asked_ ABSL_GUARDED_BY(mutex_) = false;
  bool ends_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace somnus::cli

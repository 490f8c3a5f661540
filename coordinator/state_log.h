#pragma once
// Logs the report of each engine's state (coordinator/residency/state_report.h) when the state changes.
// States that requests lead to and end are logged at level debug, since several models may change places many
// times a second.
//
// Owns a thread, and shares the engines. Thread safe.

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/monotonic.h"
#include "coordinator/engine/loop_mail.h"
#include "coordinator/openai/served_model.h"
#include "coordinator/residency/state_report.h"

namespace somnus {

class StateLog {
 public:
  // `starting`: the report until SetModels; a report that stands for a second is logged.
  explicit StateLog(std::function<StateReport()> starting);
  ~StateLog();
  StateLog(const StateLog&) = delete;

  // The models serve now. Where there are several, each line begins with the model's name.
  void SetModels(const std::vector<ServedModel>& models);
  // A state may have changed. Does not block.
  void Note() { mail_.Wake(); }

 private:
  struct Entry {
    std::string prefix;
    std::shared_ptr<Engine> engine;
    std::string seen;     // the line of the last report
    bool logged = false;  // a line above debug tells the state
  };

  void Run();
  void LookAtStart();
  static void Look(Entry* entry);

  const std::function<StateReport()> starting_;
  LoopMail mail_;
  StopSignal stop_;
  absl::Mutex mu_;
  std::vector<Entry> entries_ ABSL_GUARDED_BY(mu_);  // empty before SetModels
  std::string start_seen_, start_logged_;            // the thread's
  std::thread thread_;
};

}  // namespace somnus

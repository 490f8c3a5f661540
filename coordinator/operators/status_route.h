#pragma once
// GET /status: the state of all models, and the details of one, for operators' page and for scripts
// (status_json.h).
//
// Many may watch: an answer serves for kStatusInterval, and one caller at a time makes the next one while the
// others get the last one. So the cost does not grow with the number of watchers, and a rank that does not
// reply holds up one caller alone. Thread safe.

#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/monotonic.h"
#include "coordinator/http/http_response.h"
#include "coordinator/openai/model_table.h"

namespace somnus {

inline constexpr absl::Duration kStatusInterval = absl::Milliseconds(250);

class StatusRoute {
 public:
  // `models` is borrowed.
  StatusRoute(const ModelTable* models, std::string version);

  // `name`: of the model whose details are wanted; empty: of the first. 404: there is no such model. Blocks
  // for at most 2 s; 503: the first answer is still being made for another caller.
  HttpResponse Respond(const std::string& name);

 private:
  struct Answer {
    std::string body;  // empty: there is none yet
    MonotonicTime made;
    bool is_being_made = false;
  };

  // Null: no details, since the models load.
  std::string MakeBody(const ServedModel* model) const;

  const ModelTable* const models_;
  const std::string version_;
  const MonotonicTime start_ = MonotonicNow();
  absl::Mutex mu_;
  std::map<std::string, Answer> answers_ ABSL_GUARDED_BY(mu_);  // by the model of the details
};

}  // namespace somnus

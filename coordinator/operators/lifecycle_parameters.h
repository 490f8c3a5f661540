#pragma once
// The parameters of operators' routes: of the query, or fields of a JSON body with the same names, as some
// controllers send them. Values; the functions are pure.

#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "coordinator/http/api_error.h"
#include "coordinator/http/routes.h"
#include "coordinator/operators/lifecycle_calls.h"

namespace somnus {

class LifecycleParameters {
 public:
  // In order, as texts; none: the parameter is not given.
  const std::vector<std::string>& Values(const std::string& name) const;
  // All values, each of which may be a list with commas. An empty word stays, for the error.
  std::vector<std::string> Tags() const;
  // The last value as a mode, or as a truth value in the words that vLLM's framework reads. `*out` stays
  // unchanged where there is no value. An error names a word that is none of these.
  std::optional<ApiError> ReadMode(SleepMode* out) const;
  std::optional<ApiError> ReadBool(const std::string& name, bool* out) const;

  void Add(const std::string& name, std::string value) { values_[name].push_back(std::move(value)); }
  bool Has(const std::string& name) const { return values_.count(name) > 0; }

 private:
  std::map<std::string, std::vector<std::string>> values_;
};

// The query goes first: the body's field does not count where the query has the same name. A parameter of the
// query that the route does not take is an error, and so is a known field of the body with a value that no
// parameter can have. Everything else of a body is ignored, as vLLM ignores the whole body; so is a body that
// is no JSON object. A route that reads the body itself (/abort_requests, /collective_rpc) gets the query
// alone.
std::variant<LifecycleParameters, ApiError> ReadParameters(const RouteSpec& spec, absl::string_view query,
                                                           absl::string_view body);

}  // namespace somnus

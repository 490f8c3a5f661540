#pragma once
// Makes the numbers of a run from the record of each request.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "nlohmann/json_fwd.hpp"
#include "tools/bench/serving/options.h"

namespace somnus::bench {

// One request, seen by the client. Times in seconds since the run's start.
struct RequestRecord {
  double start_s = 0;
  double first_token_s = 0;
  double end_s = 0;
  std::vector<float> gaps_s;  // between arrivals of text after the first
  int32_t prompt_tokens = 0;  // by the server's usage
  int32_t output_tokens = 0;
  std::string error;  // the kind of error: "http 503", "connect", "timeout", "cut", ...; empty: a whole
                      // answer
};

struct Distribution {
  int64_t count = 0;
  double mean = 0, median = 0, p90 = 0, p99 = 0, max = 0;
};
// Percentiles by linear interpolation between ranks (as numpy). All zero for no values.
Distribution Summarize(std::vector<double> values);

// Latencies in milliseconds.
struct Report {
  int64_t completed = 0;
  std::map<std::string, int64_t> errors;
  double duration_s = 0;  // from the first request's start to the last request's end
  int64_t prompt_tokens = 0;
  int64_t output_tokens = 0;
  double requests_per_s = 0;
  double output_tokens_per_s = 0;
  double total_tokens_per_s = 0;
  double good_requests_per_s = 0;  // with a goodput bound
  double good_fraction = 0;        // of all requests, failed ones too
  Distribution ttft, tpot, itl, e2e;
};

// TPOT is (end - first token) / (output tokens - 1), for answers of two tokens and more.
Report MakeReport(const std::vector<RequestRecord>& records, const Goodput& goodput);

std::string ToTable(const Report& report, const Goodput& goodput);
nlohmann::json ToJson(const Report& report);

}  // namespace somnus::bench

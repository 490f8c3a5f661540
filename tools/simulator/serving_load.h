#pragma once
// Which requests come, and when: drawn from distributions of lengths, or read from a file. All sources give
// requests one by one, in the order of arrival, so that millions of requests take no memory.

#include <cstdint>
#include <fstream>
#include <memory>
#include <optional>
#include <random>
#include <string>

#include "absl/status/statusor.h"

namespace somnus {

struct LoadRequest {
  int64_t id = 0;        // from 0, in the order of arrival
  double arrival_s = 0;  // since the simulation's begin
  int32_t input = 1;     // tokens of the prompt, at least 1
  int32_t output = 1;    // tokens until the request ends, at least 1
  // Requests of one group begin with the same `prefix` tokens; -1: the request shares nothing.
  int64_t prefix_group = -1;
  int32_t prefix = 0;
};

// Numbers that depend on the seed alone, not on the standard library's distributions.
class LoadRandom {
 public:
  explicit LoadRandom(uint64_t seed) : engine_(seed) {}
  double Uniform();  // in (0, 1)
  double Normal();
  double Exponential(double mean);

 private:
  std::mt19937_64 engine_;
};

// Lengths by a log-normal distribution that is cut off above `most`. The mean after the cut is `mean`, which
// must be below `most` / 2.
class LengthDistribution {
 public:
  LengthDistribution(double mean, double sigma, int32_t most);
  int32_t Draw(LoadRandom* random) const;

 private:
  double mu_;
  double sigma_;
  int32_t most_;
};

class RequestSource {
 public:
  virtual ~RequestSource() = default;
  // Nothing: there are no more.
  virtual std::optional<LoadRequest> Next() = 0;
};

// The paper's two data sets, by their mean lengths.
enum class LoadTrace { kShareGpt, kAlpaca };

struct DrawnLoadOptions {
  LoadTrace trace = LoadTrace::kShareGpt;
  double rate = 1;  // requests per second, of a Poisson process
  int64_t requests = 1000;
  uint64_t seed = 1;
  // Each request belongs to one of so many groups and begins with a prefix of that many tokens, which come on
  // top of the request's input; 0: no prefixes.
  int32_t prefix_groups = 0;
  int32_t prefix = 0;
};

std::unique_ptr<RequestSource> DrawLoad(const DrawnLoadOptions& options);

// Reads one JSON object a line: arrival (seconds, ascending), input, output, and optionally prefix_group and
// prefix. An error in a line is found only when the line is read: the source ends there, and `status` returns
// the error.
class LoadFile : public RequestSource {
 public:
  static absl::StatusOr<std::unique_ptr<LoadFile>> Open(const std::string& path);
  std::optional<LoadRequest> Next() override;
  const absl::Status& status() const { return status_; }

 private:
  explicit LoadFile(const std::string& path) : path_(path), file_(path) {}

  const std::string path_;
  std::ifstream file_;
  absl::Status status_;
  LoadRequest last_;
  int64_t line_ = 0;
  int64_t count_ = 0;
};

}  // namespace somnus

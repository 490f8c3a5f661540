#pragma once
// The rows of gpu_bench: a line of text on stdout and a line of JSON in a file, each written as soon as the
// row is measured, so that a run that is killed leaves whole lines of all rows before.
//
// A line of JSON is {"part": "kernels", "name": "arg max, 1 x 151936"}, the fields that all lines have in
// common, and the numbers of the row. A run that ends by itself adds a last line of the part "end": "rows" is
// the number of rows measured, "not_measured" names the rows for which no time was left, and "error" says why
// the run failed.

#include <regex.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"

namespace somnus {

// An extended regular expression of POSIX, which is found anywhere in a name.
class NamePattern {
 public:
  // InvalidArgument continues a sentence that starts with the pattern: "is no regular expression: ...".
  static absl::StatusOr<std::unique_ptr<NamePattern>> Compile(const std::string& pattern);
  ~NamePattern() { regfree(&regex_); }
  NamePattern(const NamePattern&) = delete;

  bool IsFoundIn(const std::string& name) const { return regexec(&regex_, name.c_str(), 0, nullptr, 0) == 0; }

 private:
  NamePattern() = default;
  regex_t regex_;
};

struct BenchReportOptions {
  // The file, to which lines are appended; empty: no file. "-": stdout, and text and logs of this process go
  // to stderr.
  std::string json_lines;
  nlohmann::ordered_json common;        // fields of every line, behind part and name
  std::optional<std::string> only;      // selects rows of ops, as a NamePattern
  std::optional<absl::Duration> limit;  // from Open to the start of the last row
};

// Not thread safe.
class BenchReport {
 public:
  // InvalidArgument: `only` is no pattern. Unavailable: the file cannot be opened.
  static absl::StatusOr<std::unique_ptr<BenchReport>> Open(const BenchReportOptions& options);
  ~BenchReport();
  BenchReport(const BenchReport&) = delete;

  // Whether there is time to measure the row; otherwise the end's line names the row. Once false, always
  // false.
  bool Starts(const std::string& part, const std::string& name);
  // The same for an op's row, which `only` may leave out.
  bool StartsOp(const std::string& part, const std::string& name);

  // Prints a heading, or a line that belongs to no row.
  void Text(absl::string_view line);
  // Unavailable: the file cannot be written.
  absl::Status Row(const std::string& part, const std::string& name, const nlohmann::ordered_json& numbers,
                   absl::string_view text);
  // Writes the last line. Returns `status`, or an error of the report's own: nothing that `only` selects, or
  // a file that cannot be written.
  absl::Status End(absl::Status status);

 private:
  explicit BenchReport(const BenchReportOptions& options);
  absl::Status WriteLine(const nlohmann::ordered_json& line);

  const BenchReportOptions options_;
  const absl::Time end_;
  std::unique_ptr<NamePattern> only_;
  int file_ = -1;
  int num_rows_ = 0;
  bool has_ops_ = false;
  bool has_selected_ops_ = false;
  std::vector<std::string> not_measured_;
};

}  // namespace somnus

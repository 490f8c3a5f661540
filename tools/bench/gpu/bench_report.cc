#include "tools/bench/gpu/bench_report.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"

namespace somnus {

absl::StatusOr<std::unique_ptr<NamePattern>> NamePattern::Compile(const std::string& pattern) {
  auto compiled = absl::WrapUnique(new NamePattern);
  const int code = regcomp(&compiled->regex_, pattern.c_str(), REG_EXTENDED | REG_NOSUB);
  if (code == 0) return compiled;
  char reason[256];
  regerror(code, &compiled->regex_, reason, sizeof reason);
  compiled->regex_ = {};  // regfree takes an empty regex_t
  return absl::InvalidArgumentError(absl::StrCat("is no regular expression: ", reason));
}

BenchReport::BenchReport(const BenchReportOptions& options)
    : options_(options),
      end_(options.limit.has_value() ? absl::Now() + *options.limit : absl::InfiniteFuture()) {}

BenchReport::~BenchReport() {
  if (file_ >= 0) close(file_);
}

absl::StatusOr<std::unique_ptr<BenchReport>> BenchReport::Open(const BenchReportOptions& options) {
  auto report = absl::WrapUnique(new BenchReport(options));
  if (options.only.has_value()) {
    ASSIGN_OR_RETURN(report->only_, NamePattern::Compile(*options.only));
  }
  if (options.json_lines == "-") {
    std::fflush(stdout);
    report->file_ = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0);
    if (report->file_ < 0 || dup2(STDERR_FILENO, STDOUT_FILENO) < 0)
      return absl::ErrnoToStatus(errno, "cannot keep text out of the lines on stdout");
  } else if (!options.json_lines.empty()) {
    report->file_ = open(options.json_lines.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (report->file_ < 0)
      return absl::UnavailableError(
          absl::StrCat("cannot open ", options.json_lines, ": ", std::strerror(errno)));
  }
  return report;
}

bool BenchReport::Starts(const std::string& part, const std::string& name) {
  if (not_measured_.empty() && absl::Now() < end_) return true;
  not_measured_.push_back(absl::StrCat(part, ": ", name));
  return false;
}

bool BenchReport::StartsOp(const std::string& part, const std::string& name) {
  has_ops_ = true;
  if (only_ != nullptr && !only_->IsFoundIn(name)) return false;
  has_selected_ops_ = true;
  return Starts(part, name);
}

void BenchReport::Text(absl::string_view line) {
  std::printf("%.*s\n", static_cast<int>(line.size()), line.data());
  std::fflush(stdout);
}

absl::Status BenchReport::WriteLine(const nlohmann::ordered_json& line) {
  if (file_ < 0) return absl::OkStatus();
  const std::string text =
      line.dump(-1, ' ', /*ensure_ascii=*/false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  // The first call writes the whole line, but for a signal, a full disk or a pipe.
  for (size_t done = 0; done < text.size();) {
    const ssize_t written = write(file_, text.data() + done, text.size() - done);
    if (written >= 0) {
      done += static_cast<size_t>(written);
    } else if (errno != EINTR) {
      return absl::UnavailableError(
          absl::StrCat("cannot write ", options_.json_lines, ": ", std::strerror(errno)));
    }
  }
  return absl::OkStatus();
}

absl::Status BenchReport::Row(const std::string& part, const std::string& name,
                              const nlohmann::ordered_json& numbers, absl::string_view text) {
  ++num_rows_;
  Text(text);
  nlohmann::ordered_json line = {{"part", part}, {"name", name}};
  line.update(options_.common);
  line.update(numbers);
  return WriteLine(line);
}

absl::Status BenchReport::End(absl::Status status) {
  if (status.ok() && has_ops_ && !has_selected_ops_)
    status =
        absl::InvalidArgumentError(absl::StrCat("--only: no row has a name with '", *options_.only, "'"));
  nlohmann::ordered_json line = {{"part", "end"}};
  line.update(options_.common);
  line.update({{"rows", num_rows_}, {"not_measured", not_measured_}});
  if (!status.ok()) line["error"] = status.message();
  if (!not_measured_.empty()) Text(absl::StrCat("no time was left for ", absl::StrJoin(not_measured_, "; ")));
  const absl::Status written = WriteLine(line);
  return status.ok() ? written : status;
}

}  // namespace somnus

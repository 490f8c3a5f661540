#include "coordinator/flags/flag_setters.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/flag_values.h"
#include "base/numa.h"
#include "coordinator/flags/kv_cache_dtype.h"

namespace somnus {

absl::Status SetWorkers(const std::string& value, Flags* flags) {
  flags->discover_workers = value == "auto";
  if (flags->discover_workers) return absl::OkStatus();
  const bool remote = absl::StartsWith(value, "remote:");
  int32_t count;
  const absl::string_view number =
      remote ? absl::StripPrefix(value, "remote:") : absl::StripPrefix(value, "local:");
  if (!absl::SimpleAtoi(number, &count) || count < 1 || count > kMaxWorkers) {
    return absl::InvalidArgumentError(
        absl::StrCat("is not auto, local:N or remote:N, N from 1 to ", kMaxWorkers));
  }
  flags->local_workers = !remote;
  flags->world_size = count;
  return absl::OkStatus();
}

absl::Status SetServedNames(const std::string& value, Flags* flags) {
  std::vector<std::string> names = absl::StrSplit(value, '\n');
  if (names.size() > kMaxServedNames)
    return absl::InvalidArgumentError(absl::StrCat("are more than ", kMaxServedNames, " names"));
  for (const std::string& name : names) {
    if (name.empty()) return absl::InvalidArgumentError("is empty");
  }
  flags->served_model_name = names.front();
  flags->model_aliases.assign(names.begin() + 1, names.end());
  return absl::OkStatus();
}

absl::Status SetRootPath(const std::string& value, Flags* flags) {
  const std::string root(absl::StripSuffix(value, "/"));
  const bool is_path = std::all_of(root.begin(), root.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || absl::StrContains("/-._~", c);
  });
  if (!value.empty() && (value[0] != '/' || !is_path || absl::StrContains(value, "//")))
    return absl::InvalidArgumentError("is no path as /llm, of letters, digits and -._~");
  flags->root_path = root;
  return absl::OkStatus();
}

absl::Status SetKvCacheDType(const std::string& value, Flags* flags) {
  const absl::StatusOr<v1::DType> dtype = ParseKvCacheDType(value);
  if (!dtype.ok()) return dtype.status();
  flags->kv_cache_dtype = *dtype;
  flags->kv_cache_dtype_name = absl::StrReplaceAll(value, {{"-", "_"}});
  return absl::OkStatus();
}

absl::Status SetNuma(const std::string& value, Flags* flags) {
  flags->numa = value == "auto" ? "" : value;
  return ParseNumaOption(value).status();
}

absl::Status SetSwapSpace(const std::string& value, Flags* flags) {
  constexpr double kMostGib = 1024;
  if (double gib; absl::SimpleAtod(value, &gib) && gib >= 0 && gib <= kMostGib) {
    flags->swap_space_bytes = static_cast<int64_t>(gib * (int64_t{1} << 30));
    return absl::OkStatus();
  }
  const absl::StatusOr<int64_t> bytes = ParseBytes(value);
  if (!bytes.ok()) return bytes.status();
  flags->swap_space_bytes = *bytes;
  return absl::OkStatus();
}

}  // namespace somnus

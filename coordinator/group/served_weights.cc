#include "coordinator/group/served_weights.h"

#include <google/protobuf/text_format.h>

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/run_dir.h"
#include "proto/group_file.pb.h"
#include "proto/text_file.h"

namespace somnus {
namespace {

std::string PathIn(const std::string& run_dir) { return absl::StrCat(run_dir, "/weights"); }

std::optional<v1::ServedWeights> ReadWeights(const std::string& run_dir) {
  v1::ServedWeights weights;
  if (run_dir.empty() || !ReadTextFile(PathIn(run_dir), &weights).ok()) return std::nullopt;
  return weights;
}

}  // namespace

absl::Status RecordWeights(const std::string& run_dir, int64_t version, const std::string& source) {
  v1::ServedWeights weights;
  weights.set_version(version);
  weights.set_source(source);
  std::string text;
  google::protobuf::TextFormat::PrintToString(weights, &text);
  return WriteFileAtomically(PathIn(run_dir), text);
}

int64_t FirstWeightsVersion(const std::string& run_dir, const std::string& source) {
  const std::optional<v1::ServedWeights> left = ReadWeights(run_dir);
  return left.has_value() && left->source() == source ? std::max<int64_t>(left->version(), 1) : 1;
}

std::string NoteOfOlderWeights(const std::string& run_dir, int64_t version, const std::string& source) {
  const std::optional<v1::ServedWeights> left = ReadWeights(run_dir);
  if (!left.has_value() || left->source() == source) return "";
  return absl::StrCat("an earlier server has changed the weights to version ", left->version(), ", from ",
                      left->source(), "; this one has version ", version, ", from ", source,
                      ", until a reload or an update brings others");
}

}  // namespace somnus

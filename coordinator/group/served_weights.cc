#include "coordinator/group/served_weights.h"

#include <google/protobuf/text_format.h>

#include "absl/strings/str_cat.h"
#include "base/run_dir.h"
#include "proto/group_file.pb.h"
#include "proto/text_file.h"

namespace somnus {
namespace {

std::string PathIn(const std::string& run_dir) { return absl::StrCat(run_dir, "/weights"); }

}  // namespace

absl::Status RecordWeights(const std::string& run_dir, int64_t version, const std::string& source) {
  v1::ServedWeights weights;
  weights.set_version(version);
  weights.set_source(source);
  std::string text;
  google::protobuf::TextFormat::PrintToString(weights, &text);
  return WriteFileAtomically(PathIn(run_dir), text);
}

std::string NoteOfOlderWeights(const std::string& run_dir, int64_t version, const std::string& source) {
  v1::ServedWeights left;
  if (run_dir.empty() || !ReadTextFile(PathIn(run_dir), &left).ok()) return "";
  if (left.source() == source) return "";
  return absl::StrCat("an earlier server has changed the weights to version ", left.version(), ", from ",
                      left.source(), "; this one has version ", version, ", from ", source,
                      ", until a reload or an update brings others");
}

}  // namespace somnus

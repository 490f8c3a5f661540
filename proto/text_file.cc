#include "proto/text_file.h"

#include <errno.h>
#include <google/protobuf/io/tokenizer.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "base/small_file.h"

namespace somnus {
namespace {

// Keeps the first error, which the parser would print otherwise.
class FirstError : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, int, const std::string& message) override {
    if (text_.empty()) text_ = absl::StrCat("line ", line + 1, ": ", message);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

}  // namespace

absl::Status ReadTextFile(const std::string& path, google::protobuf::Message* message,
                          google::protobuf::TextFormat::ParseInfoTree* lines) {
  if (access(path.c_str(), F_OK) != 0 && errno == ENOENT)
    return absl::NotFoundError(absl::StrCat("there is no ", path));
  const absl::StatusOr<std::string> text = ReadPipedFile(path, kMaxTextFileBytes);
  if (!text.ok()) return absl::DataLossError(absl::StrCat("it ", text.status().message()));
  FirstError error;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&error);
  if (lines != nullptr) parser.WriteLocationsTo(lines);
  if (!parser.ParseFromString(*text, message)) return absl::DataLossError(error.text());
  return absl::OkStatus();
}

}  // namespace somnus

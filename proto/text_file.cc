#include "proto/text_file.h"

#include <errno.h>
#include <google/protobuf/io/tokenizer.h>
#include <unistd.h>

#include <fstream>

#include "absl/strings/str_cat.h"

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
  std::ifstream file(path);
  std::string text(kMaxTextFileBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad() || (file.fail() && !file.eof())) return absl::DataLossError("it cannot be read");
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kMaxTextFileBytes)
    return absl::DataLossError(absl::StrCat("it has more than ", kMaxTextFileBytes, " bytes"));
  FirstError error;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&error);
  if (lines != nullptr) parser.WriteLocationsTo(lines);
  if (!parser.ParseFromString(text, message)) return absl::DataLossError(error.text());
  return absl::OkStatus();
}

}  // namespace somnus

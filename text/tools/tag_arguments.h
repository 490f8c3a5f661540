#pragma once
// Reads arguments that are written as tags, one for each parameter, and writes a JSON object. Values become
// JSON by the tool's schema. Some models write one JSON object in the place of the tags; the object is taken
// as it is.

#include <memory>
#include <string>
#include <vector>

#include "text/tools/call_reader.h"
#include "text/tools/json_scanner.h"
#include "text/tools/tag_value.h"
#include "text/tools/tool_format.h"
#include "text/tools/tool_schemas.h"

namespace somnus {

class TagArguments : public ArgumentReader {
 public:
  // `is_certain`: the header has said that a call follows. `format` and `schemas` must outlive the reader.
  TagArguments(const ToolFormat& format, const ToolSchemas& schemas, std::string tool, bool is_certain,
               const TurnLimits& limits);

  ReadState Read(char c, std::string* json) override;
  bool Finish(bool is_cut, std::string* json) override;
  bool started() const override { return started_; }
  std::string unread() const override { return unread_; }

 private:
  enum class At { kBetween, kKey, kAttributes, kValueBegin, kValue, kJson };
  ReadState ReadBetween(char c, std::string* json);
  ReadState ReadKey(char c, std::string* json);
  ReadState ReadAttributes(char c, std::string* json);
  ReadState ReadValueBegin(char c, std::string* json);
  ReadState ReadValue(char c, std::string* json);
  ReadState ReadJson(char c, std::string* json);
  void EndKey(std::string* json);
  void BeginValue();
  ReadState Stop(std::string* json);
  void Close(std::string* json);

  const ToolFormat& format_;
  const ToolSchemas& schemas_;
  const std::string tool_;
  const TurnLimits limits_;
  const std::vector<ValueEnd> ends_;
  bool started_;
  At at_ = At::kBetween;
  std::string mark_;  // the part of a tag that has been read
  std::string unread_;
  std::string key_, attributes_;
  int num_parameters_ = 0;
  bool has_json_ = false;  // one JSON object is all arguments
  JsonScanner scanner_;
  std::unique_ptr<TagValue> value_;
};

}  // namespace somnus

#pragma once
// Reads calls that are JSON objects: {"name": "f", "arguments": {...}}, or an array of such objects.
// The name may be named "tool_name", and arguments "parameters"; arguments may come before the name, and may
// be a string that holds JSON. In another form the name is the key of the arguments: {"f": {...}}.

#include <optional>
#include <string>

#include "text/tools/call_reader.h"
#include "text/tools/json_scanner.h"

namespace somnus {

class JsonCallsReader : public CallReader {
 public:
  // `has_marker`: a marker has said that a call follows, so that a name alone is a call. `name_is_key`: the
  // other form. `output` must outlive the reader.
  JsonCallsReader(bool has_marker, bool name_is_key, const TurnLimits& limits, CallOutput* output)
      : has_marker_(has_marker),
        name_is_key_(name_is_key),
        limits_(limits),
        output_(output),
        scanner_(limits.max_depth) {}

  ReadState Read(char c) override;
  void Finish(bool is_cut) override;

 private:
  enum class At { kStart, kKeyOrEnd, kKey, kColon, kValue, kCommaOrEnd, kNextOrEnd };
  enum class Field { kName, kArguments, kId, kOther };
  enum class Call { kNone, kOpen, kEnded };

  ReadState ReadStructure(char c);
  ReadState ReadStart(char c);
  ReadState ReadKey(char c);
  ReadState ReadValue(char c);
  bool EndKey();
  bool EndValue();
  bool EndObject();
  bool BeginCall();
  void EndCall(absl::string_view rest, bool is_whole = true);
  bool BeginWith(const std::string& arguments, bool is_whole = true);
  std::string BufferedArguments() const;
  ReadState Stop();

  const bool has_marker_, name_is_key_;
  const TurnLimits limits_;
  CallOutput* const output_;
  bool in_array_ = false;
  At at_ = At::kStart;

  // Of the object under way.
  Call call_ = Call::kNone;
  std::optional<std::string> name_, arguments_;
  std::string id_;

  // Of the key or value under way.
  JsonScanner scanner_;
  std::string buffer_;
  Field field_ = Field::kOther;
  bool value_started_ = false;
  int64_t bytes_ = 0;
};

}  // namespace somnus

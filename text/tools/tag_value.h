#pragma once
// Reads the text of one parameter up to the tag that ends the text, and writes JSON. The text may hold the
// end tag itself: an end tag counts only where a tag that may follow the value follows. The end tag may lack
// where the next parameter's tag begins a line, or the call ends. Not thread safe.

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "text/tools/call_reader.h"
#include "text/tools/tool_format.h"
#include "text/tools/tool_schemas.h"

namespace somnus {

// One way in which a value ends.
struct ValueEnd {
  std::string text;
  std::vector<absl::string_view>
      followers;            // one of these follows, perhaps after white space; empty: anything may
  bool is_outside = false;  // `text` is no part of the value's own tags, but follows
};
std::vector<ValueEnd> ValueEndsOf(const ToolFormat& format);

class TagValue {
 public:
  // `ends` must outlive the value. `drops_line_break`: a line break before the text does not belong to the
  // text.
  TagValue(const std::vector<ValueEnd>* ends, bool drops_line_break, ValueTypes types,
           const TurnLimits& limits);

  // kDone: the value has ended; rest() was read ahead, and follows the value. kStop: the value is too long.
  ReadState Read(char c, std::string* json);
  const std::string& rest() const { return rest_; }
  // A cut value gives no JSON where its type is not known before the end.
  void Finish(bool is_cut, std::string* json);

 private:
  enum class Match { kNo, kMaybe, kYes };
  static Match MatchEnd(absl::string_view text, const ValueEnd& end);
  void Append(char c, std::string* json);
  void Begin(std::string* json);
  void End(std::string* json);

  const std::vector<ValueEnd>* ends_;
  bool drops_line_break_;
  ValueTypes types_;
  bool is_string_;  // the text can be written before its end is known
  TurnLimits limits_;
  bool begun_ = false;
  std::string held_;    // may be the value's end
  std::string buffer_;  // the text so far, unless is_string_
  std::string rest_;
  int64_t bytes_ = 0;
};

}  // namespace somnus

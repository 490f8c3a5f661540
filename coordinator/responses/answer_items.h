#pragma once
// The output items of a response - reasoning, messages and function calls - made from the parts of a turn
// (text/tools/turn_event.h), and the stream's events about the items in OpenAI's order: one item after the
// other, each from response.output_item.added to response.output_item.done. Not thread safe.

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/responses/stream_events.h"
#include "text/tools/turn_event.h"

namespace somnus {

class AnswerItems {
 public:
  // `events`: null where the response is no stream; must outlive this object otherwise.
  explicit AnswerItems(StreamEvents* events) : events_(events) {}

  // The stream's events are appended to `out`. `logprobs`: of content, entries of JSON with commas between.
  void Add(const TurnEvent& event, const std::string& logprobs, std::string* out);
  // The answer has ended. An answer without items gets a message without a text. `is_cut`: the item that is
  // open is incomplete.
  void End(bool is_cut, std::string* out);

  // Appends the list of all items, after End.
  void AppendOutput(std::string* out) const;
  // An estimate of the memory of all items.
  int64_t bytes() const { return bytes_; }

 private:
  enum class Kind { kReasoning, kMessage, kCall };
  struct Item {
    Kind kind;
    std::string id;
    std::string text;           // of a call: the arguments
    std::string call_id, name;  // of a call
    std::string logprobs;       // of a message
    const char* status;
  };

  void Open(Item item, std::string* out);
  void Grow(const std::string& text, const std::string& logprobs, std::string* out);
  void Close(bool is_cut, std::string* out);
  // Opens an item of this kind unless such an item is open.
  void OpenText(Kind kind, std::string* out);

  // `,"item_id":...,"output_index":...`, and the content's index where the item has content.
  std::string Place() const;
  static void AppendPart(const Item& item, std::string* out);
  // `with_text` false: as the item begins.
  static void AppendItem(const Item& item, bool with_text, std::string* out);

  StreamEvents* const events_;
  std::vector<Item> items_;
  bool is_open_ = false;  // the last item may grow
  int64_t bytes_ = 0;
};

}  // namespace somnus

#include "text/jinja/continued_message.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/random_hex.h"
#include "base/status_macros.h"
#include "text/jinja/text.h"

namespace somnus {
namespace {

// A random word, which no template or message can hold by foresight. The word has the length and the shape of
// transformers' mark and, as there, a space follows, so that templates which test or cut their messages treat
// the two marks alike. The space shows whether a template strips the text.
std::string MakeMark() {
  std::string mark = "CONTINUE_FINAL_MESSAGE_TAG";
  const std::string random = RandomHex(mark.size());
  for (size_t i = 0; i < mark.size(); ++i) {
    const char digit = random[i];  // a letter of A to P
    if (mark[i] != '_') mark[i] = static_cast<char>('A' + (digit <= '9' ? digit - '0' : digit - 'a' + 10));
  }
  return mark;
}

absl::string_view Stripped(absl::string_view text) { return jinja::Strip(text, std::nullopt, true, true); }

}  // namespace

absl::StatusOr<std::string> RenderContinued(const ChatTemplate& chat_template,
                                            nlohmann::ordered_json context) {
  // A template without the word "content" cannot name the text, though the template may print whole messages.
  if (!absl::StrContains(chat_template.source(), "content"))
    return absl::FailedPreconditionError("the chat template does not name the content of messages");
  const std::string mark = MakeMark();
  nlohmann::ordered_json& content = context["messages"].back()["content"];
  const std::string text = content.get<std::string>();
  content = absl::StrCat(text, mark, " ");
  ASSIGN_OR_RETURN(std::string rendered, chat_template.Render(context));
  const size_t at = rendered.rfind(mark);
  if (at == std::string::npos || !absl::StrContains(rendered, Stripped(text))) {
    return absl::FailedPreconditionError("the chat template does not write the last message as it is");
  }
  const bool keeps_space = rendered.compare(at + mark.size(), 1, " ") == 0;
  rendered.resize(at);
  if (!keeps_space) rendered.resize(jinja::Strip(rendered, std::nullopt, false, true).size());
  // A template that writes the message more than once has also left the mark earlier in the prompt.
  return absl::StrReplaceAll(rendered, {{absl::StrCat(mark, " "), ""}, {mark, ""}});
}

}  // namespace somnus

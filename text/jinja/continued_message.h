#pragma once
// continue_final_message: a prompt that ends where the last message's text ends, so that the model continues
// the text. The rule and the errors are the same as of transformers 5 (apply_chat_template): the messages are
// rendered with a mark behind the text, and the prompt is the part before the mark.

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "text/jinja/chat_template.h"

namespace somnus {

// Renders context["messages"] up to the end of the last message's text. The list is not empty, and the last
// message has a "content" of text. Where the template removes white space after the text, all white space
// before the mark is removed, too. FailedPrecondition: the template does not write the text unchanged.
// Further errors are the errors of Render.
absl::StatusOr<std::string> RenderContinued(const ChatTemplate& chat_template,
                                            nlohmann::ordered_json context);

}  // namespace somnus

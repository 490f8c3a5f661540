#pragma once
// The tokens that end a turn, found by their text: GGUF files often name only one of them, or a wrong one,
// and type some of them as ordinary text.

#include "checkpoint/tokenizer_data.h"

namespace somnus {

// Adds to data->end_token_ids every token that is a known end of a turn or of a text: control tokens, those
// of other types whose spelling no text has by chance, and the rest where the chat template writes it.
// Markers of turns (ends, and all else of the form <|...|> that the chat template writes) that are typed as
// ordinary text become control tokens, with a warning in data->warnings. Reads data->chat_template and
// data->added_tokens.
void FindEndMarkers(TokenizerData* data);

// Adds one id, once.
void AddEndToken(int32_t id, TokenizerData* data);

}  // namespace somnus

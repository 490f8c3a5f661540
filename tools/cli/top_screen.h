#pragma once
// The picture that `somnus top` draws on a terminal: the models, the ranks of one, and requests. Pure.

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "proto/control.pb.h"
#include "tools/cli/request_report.h"

namespace somnus::cli {

// The state of the server at the last look.
struct TopFacts {
  std::string url;
  v1::ListModelStatusResponse models, before;  // `before`: of the look before, `passed` ago
  absl::Duration passed;                       // zero: there was no look before
  v1::GetStatusResponse status;                // of the selected model
  RequestList requests;
  std::string error;  // of a look that has failed; the rest is of an earlier one
};

enum class TopPane { kRequests, kModels, kUsers };

// The user's choices: pane, rows, order, filter.
struct TopView {
  TopPane pane = TopPane::kRequests;
  size_t model = 0;  // the selected row of each pane
  size_t request = 0;
  size_t user = 0;
  RequestQuestion question;
  bool types_filter = false;
  std::string asks;  // a question that y answers with yes; empty: none
  std::string note;  // the result of the last command
  bool shows_help = false;
  std::optional<RequestStory> story;  // of the request that is explained
  size_t scroll = 0;                  // lines of the help or the story above the screen

  bool shows_text() const { return shows_help || story.has_value(); }
};

// At most `rows` lines of at most `columns` characters. Needs some ten rows and 40 columns to be of use, and
// never draws more than there is.
std::vector<std::string> DrawTop(const TopFacts& facts, const TopView& view, int rows, int columns);

// How far the help or the story can be scrolled on such a screen.
size_t MostScroll(const TopView& view, int rows, int columns);

// Requests as lines below a line of titles, for a terminal of that width. `selected` is marked; -1: none is.
std::vector<std::string> RequestLines(const std::vector<RequestRow>& rows, int selected, int columns);

}  // namespace somnus::cli

#include "tools/cli/text_table.h"

#include <unistd.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace somnus::cli {
namespace {

size_t WidthOf(absl::string_view cell) { return static_cast<size_t>(Width(cell)); }

}  // namespace

int Width(absl::string_view text) {
  int width = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\033') {
      i = std::min(text.find('m', i), text.size());
    } else if ((text[i] & 0xc0) != 0x80) {  // no further byte of a character
      ++width;
    }
  }
  return width;
}

std::string Cut(absl::string_view text, int columns) {
  size_t end = 0;
  for (int width = 0; end < text.size(); ++end) {
    if ((text[end] & 0xc0) != 0x80 && ++width > columns) break;
  }
  return std::string(text.substr(0, end));
}

int OutputColumns() { return Columns(STDOUT_FILENO, kAnyWidth); }

std::string Wrap(absl::string_view text, int columns, int indent) {
  std::string lines;
  int at = -1;  // the columns of the last line; before the first word there is no blank
  for (const absl::string_view word : absl::StrSplit(text, ' ')) {
    const int width = Width(word);
    if (at > indent && at + 1 + width > columns) {
      absl::StripTrailingAsciiWhitespace(&lines);
      absl::StrAppend(&lines, "\n", std::string(indent, ' '), word);
      at = indent + width;
    } else {
      absl::StrAppend(&lines, at < 0 ? "" : " ", word);
      at += 1 + width;
    }
  }
  return lines;
}

void TextTable::Add(Row cells, std::optional<Style> style) { entries_.push_back({std::move(cells), style}); }

std::vector<size_t> TextTable::Widths() const {
  std::vector<size_t> widths;
  for (const std::string& title : titles_) widths.push_back(WidthOf(title));
  for (const Entry& entry : entries_) {
    for (size_t i = 0; i < widths.size(); ++i) widths[i] = std::max(widths[i], WidthOf(entry.cells[i]));
  }
  return widths;
}

std::string TextTable::Line(const Entry& entry, const std::vector<size_t>& widths) const {
  std::string line;
  for (size_t i = 0; i < entry.cells.size(); ++i) {
    const std::string& text = entry.cells[i];
    const bool is_text = i < num_text_ || i + 1 == entry.cells.size();
    const std::string space(widths[i] - std::min(widths[i], WidthOf(text)), ' ');
    const std::string cell =
        i == 1 && entry.style.has_value() ? Styled(STDOUT_FILENO, *entry.style, text) : text;
    absl::StrAppend(&line, i > 0 ? "  " : "", is_text ? "" : space, cell, is_text ? space : "");
  }
  absl::StripTrailingAsciiWhitespace(&line);
  return line;
}

std::string TextTable::Paragraph(const Entry& entry, int columns) const {
  std::string head = absl::StrCat(titles_[0], " ", entry.cells[0]);
  size_t first = 1;
  if (entry.style.has_value())
    absl::StrAppend(&head, ": ", Styled(STDOUT_FILENO, *entry.style, entry.cells[first++]));
  std::vector<std::string> parts;
  for (size_t i = first; i < entry.cells.size(); ++i) {
    if (entry.cells[i].empty() || entry.cells[i] == "-") continue;
    parts.push_back(titles_[i].empty() ? entry.cells[i] : absl::StrCat(titles_[i], " ", entry.cells[i]));
  }
  std::string text = absl::StrCat(Wrap(head, columns, 2), "\n");
  if (!parts.empty())
    absl::StrAppend(&text, Wrap(absl::StrCat("  ", absl::StrJoin(parts, ", ")), columns, 2), "\n");
  return text;
}

std::string TextTable::Text(int columns) const {
  const std::vector<size_t> widths = Widths();
  std::vector<std::string> lines = {Line({titles_, std::nullopt}, widths)};
  for (const Entry& entry : entries_) lines.push_back(Line(entry, widths));
  const bool fits = std::all_of(lines.begin(), lines.end(),
                                [columns](const std::string& line) { return Width(line) <= columns; });
  std::string text;
  if (fits) {
    lines[0] = Styled(STDOUT_FILENO, Style::kBold, lines[0]);
    return absl::StrCat(absl::StrJoin(lines, "\n"), "\n");
  }
  for (const Entry& entry : entries_) absl::StrAppend(&text, Paragraph(entry, columns));
  return text;
}

}  // namespace somnus::cli

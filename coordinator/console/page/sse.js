// Server-sent events of a response, as they come: {data} for an event, {comment} for a comment.
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    for (let end = rest.indexOf("\n"); end >= 0; end = rest.indexOf("\n")) {
      const line = rest.slice(0, end).replace(/\r$/, "");
      rest = rest.slice(end + 1);
      if (line.startsWith("data:")) yield { data: line.slice(5).trim() };
      else if (line.startsWith(":")) yield { comment: line.slice(1).trim() };
    }
  }
}

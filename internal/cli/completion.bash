# Completion of queued for bash: source <(queued completion bash)
_queued() {
  local line=${COMP_LINE:0:COMP_POINT} word last prefix reply
  local -a words
  read -ra words <<<"$line"
  [[ $line == *[[:space:]] ]] && words+=("")
  word=${words[${#words[@]} - 1]}
  # bash ends a word at = and :, too, and wants only what comes after.
  last=${COMP_WORDS[COMP_CWORD]}
  [[ $last == "=" || $last == ":" ]] && last=
  prefix=${word%"$last"}
  COMPREPLY=()
  while IFS=$'\t' read -r reply _; do
    COMPREPLY+=("${reply#"$prefix"}")
  done < <("${words[0]}" __complete -- "${words[@]:1}" 2>/dev/null)
}
complete -o bashdefault -o default -F _queued queued

#compdef queued
# Completion of queued for zsh: source <(queued completion zsh)
_queued() {
  local line
  local -a candidates
  for line in "${(@f)$(${words[1]} __complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
    [[ -n $line ]] && candidates+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
  done
  if (( ${#candidates} )); then
    _describe -V queued candidates
  else
    _files
  fi
}
if [[ ${funcstack[1]} == _queued ]]; then
  _queued "$@"
else
  compdef _queued queued
fi

# Completion of queued for fish: queued completion fish | source
function __queued_complete
    set -l words (commandline -opc) (commandline -ct)
    $words[1] __complete -- $words[2..-1] 2>/dev/null
end
complete -c queued -n 'count (__queued_complete) >/dev/null' -f -a '(__queued_complete)'
complete -c queued -n 'not count (__queued_complete) >/dev/null' -F

"""What `runner completion SHELL` prints (pure).

Each script asks `runner __complete` (answer.py) and hands on what it says. No name is ever expanded
or evaluated: no `eval`, no `compgen -W`. The program is the one on PATH, or that of the absolute
path typed: a `./runner` of somebody's folder is not started by Tab.
"""

from __future__ import annotations

SHELLS = ("bash", "zsh", "fish")

_BASH = r"""# runner: completion for bash 4.4 or newer. To install it:
#   runner completion bash > ~/.local/share/bash-completion/completions/runner
_runner_complete() {
    COMPREPLY=()
    local program=runner kind line
    case $1 in
        /*) program=$1 ;;
        '~/'*) program=$HOME/${1#??} ;;
    esac
    local -a answer=()
    while IFS= read -r line; do
        answer+=("$line")
    done < <(command "$program" __complete bash "$COMP_WORDBREAKS" \
        "${COMP_LINE:0:COMP_POINT}" </dev/null 2>/dev/null)
    kind=${answer[0]%% *}
    case $kind in
        open) compopt -o nospace ;;
        file) compopt -o default ;;
        folder) compopt -o plusdirs ;;
        at)
            while IFS= read -r line; do
                [[ -d $line ]] && line+=/
                printf -v line '@%q' "$line"
                COMPREPLY+=("$line")
            done < <(compgen -f -- "${answer[1]}")
            [[ ${COMPREPLY[0]} == */ ]] && compopt -o nospace
            return ;;
    esac
    compopt -o nosort 2>/dev/null
    COMPREPLY=("${answer[@]:1}")
}
complete -F _runner_complete runner
"""

_ZSH = r"""#compdef runner
# runner: completion for zsh. To install it, into a folder of your $fpath:
#   runner completion zsh > ~/.zfunc/_runner
_runner() {
    local program=runner
    case $words[1] in
        (/*) program=${(Q)words[1]} ;;
        (\~/*) program=$HOME/${(Q)words[1]#??} ;;
    esac
    local -a answer
    answer=("${(@f)$(command $program __complete zsh "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" \
        </dev/null 2>/dev/null)}")
    local kind=${answer[1]%% *} hidden=${answer[1]##* }
    case $kind in
        (file|folder)
            (( hidden )) && compset -p $hidden
            [[ $kind == file ]] && _files || _files -/
            return ;;
    esac
    local line word about width=0
    local -a closed closed_shown open open_shown
    for line in "${(@)answer[2,-1]}"; do
        word=${line%%$'\t'*}
        (( $#word - hidden > width )) && width=$(( $#word - hidden ))
    done
    for line in "${(@)answer[2,-1]}"; do
        word=${line%%$'\t'*}
        about=${${line#*$'\t'}%$'\t'*}
        if [[ -n $about ]]; then
            about="${(r:width:)word[hidden+1,-1]}  -- $about"
        else
            about=$word[hidden+1,-1]
        fi
        if [[ $line == *$'\t'open ]]; then
            open+=("$word") open_shown+=("$about")
        else
            closed+=("$word") closed_shown+=("$about")
        fi
    done
    local -a each
    [[ ${(j::)answer} == *$'\t'[^$'\t']* ]] && each=(-l)
    local found=1
    (( $#closed )) && compadd $each -V runner -d closed_shown -a closed && found=0
    (( $#open )) && compadd $each -V runner -S '' -d open_shown -a open && found=0
    return found
}
if [[ $funcstack[1] == _runner ]]; then
    _runner "$@"
elif (( $+functions[compdef] )); then
    compdef _runner runner
fi
"""

_FISH = r"""# runner: completion for fish 3.1 or newer. To install it:
#   runner completion fish > ~/.config/fish/completions/runner.fish
function __runner_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l program runner
    if string match -q -- '/*' $words[1]
        set program $words[1]
    else if string match -q -- '~/*' $words[1]
        set program $HOME/(string sub -s 3 -- $words[1])
    end
    set -e words[1]
    set -l answer (command $program __complete fish $words "$current" </dev/null 2>/dev/null)
    set -l kind (string split ' ' -- $answer[1])
    set -e answer[1]
    if contains -- "$kind[1]" file folder
        set -l prefix (string sub -l $kind[2] -- "$current")
        set -l rest (string sub -s (math $kind[2] + 1) -- "$current")
        if test $kind[1] = file
            set answer (__fish_complete_path "$rest")
        else
            set answer (__fish_complete_directories "$rest")
        end
        set answer "$prefix"$answer
    end
    if set -q answer[1]
        printf '%s\n' $answer
    end
end
complete -c runner -e
complete -c runner -f -k -a '(__runner_complete)'
"""

_SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def script(shell: str) -> str:
    """The script for one of SHELLS."""
    return _SCRIPTS[shell]

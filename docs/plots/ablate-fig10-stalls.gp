set encoding utf8
set terminal svg size 800,500 fixed noenhanced font "DejaVu Sans,Helvetica,Arial,sans-serif,15" background "#ffffff" linewidth 1.2
set border 3 lc rgb "#444444"
set grid ytics lc rgb "#dddddd" lt 1 lw 0.7
set tics nomirror scale 0.5 textcolor rgb "#000000"
set style fill solid 0.85 noborder
set title "Time stalled, by KV period and load time"
set ylabel "ms a token, median and quartiles"
set xlabel "KV period, tokens" . "\n"
set key outside below center horizontal Left reverse samplen 2.5 spacing 1.25 width -1.8
set logscale x 2
set autoscale xfix
set offsets graph 0.03, graph 0.03, 0, 0
set xrange [*:*]
set yrange [0:*]
$series0 << END
1 8.727231 8.24788291 9.21072889 
2 9.25221577 8.96478559 9.62590164 
4 9.26001551 8.78262064 9.71184092 
8 9.47352416 8.92627203 10.2200987 
16 9.28332644 8.83551891 10.10134 
32 9.72178169 8.91697731 10.1777356 
END
$series1 << END
1.02 20.5946865 19.6898899 21.6935562 
2.04 21.1951242 20.2267327 21.9412039 
4.08 20.9244025 20.5814339 22.5659182 
8.16 21.4358388 20.3572609 22.333444 
16.32 21.9693605 20.8926078 23.1574887 
32.64 21.5155821 20.9321146 23.0763485 
END
plot \
	$series0 using 1:3:(0):($4 - $3) with vectors heads size screen 0.005,90 nofilled lw 1.2 lc rgb "#0072B2" notitle, \
	$series0 using 1:2 with linespoints lw 2 dt 1 pt 7 ps 0.8 lc rgb "#0072B2" title "load 5.32 ms", \
	$series1 using 1:3:(0):($4 - $3) with vectors heads size screen 0.005,90 nofilled lw 1.2 lc rgb "#D55E00" notitle, \
	$series1 using 1:2 with linespoints lw 2 dt 1 pt 5 ps 0.8 lc rgb "#D55E00" title "load 10.63 ms"
